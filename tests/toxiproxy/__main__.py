from tests.toxiproxy import build

print(build())

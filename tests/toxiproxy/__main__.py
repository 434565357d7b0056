import sys

from chaosrunner.errors import UserError
from tests.toxiproxy import build

try:
    print(build())
except UserError as error:
    sys.exit(str(error))

"""The images that every node begins with, unpacked once and then shared by hard links.

Each node's containerd has a store of its own; to import the images into each at every start would write half a
gigabyte. What a store holds of an image never changes (blobs are named by their content, and a container writes to a
layer of its own), so that the stores of all nodes and labs can have the same files; only its databases are copied.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from chaosrunner.lab.real import mounts
from chaosrunner.lab.real.binaries import Binaries, cache
from chaosrunner.lab.real.caching import clear_scratch, locked, scratch

_PATIENCE = 60.0
"""Longest start and end of the containerd that unpacks, seconds each."""
_KEPT_SECONDS = 3600.0
"""A store that nobody wanted for so long goes."""


def prepare(binaries: Binaries, images: Sequence[Path]) -> Path:
    """The store with these images; makes it where it is not there. RuntimeError with what containerd said."""
    folder = cache() / "seeds"
    folder.mkdir(parents=True, exist_ok=True)
    named = "\n".join([str(binaries.folder), *sorted(image.name for image in images)])
    seed = folder / hashlib.sha256(named.encode()).hexdigest()[:16]
    with locked(folder / "lock"):
        if seed.exists():
            seed.touch()
        clear_scratch(folder)
        _drop_old(folder)
        if not seed.exists():
            with scratch(folder) as place:
                _unpack(binaries, images, place)
                (place / "root").rename(seed)
    return seed


def plant(seed: Path, root: Path) -> None:
    """Make `root`, which must not exist, a store with the same images. RuntimeError where that fails."""
    seed, uncovered = mounts.uncovered(seed), mounts.uncovered(root)
    _run(["cp", "-a", *(["--link"] if _can_link(seed, uncovered.parent) else []), str(seed), str(uncovered)])
    for database in root.rglob("*.db"):
        copy = database.with_suffix(".copy")
        shutil.copy2(database, copy)
        copy.replace(database)


def _can_link(seed: Path, folder: Path) -> bool:
    """Whether files can have a second name in `folder`: not on another file system, nor through another mount."""
    link = folder / "linked"
    try:
        link.hardlink_to(next(path for path in seed.rglob("*") if path.is_file()))
    except OSError:
        return False
    link.unlink()
    return True


def import_image(binaries: Binaries, socket: Path, image: Path) -> None:
    """Give an image to a containerd, for kubelet to find. RuntimeError with what `ctr` said."""
    _run([str(binaries.ctr), "-a", str(socket), "-n", "k8s.io", "images", "import", "--local", str(image)])


def _unpack(binaries: Binaries, images: Sequence[Path], scratch: Path) -> None:
    # Of the lab alone, as all below /run; a path below the cache could be too long for a socket.
    socket = Path("/run/seed.sock")
    configuration = scratch / "containerd.toml"
    configuration.write_text(
        f"""\
version = 3
root = "{scratch}/root"
state = "{scratch}/state"
disabled_plugins = ["io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"]
[grpc]
  address = "{socket}"
[plugins.'io.containerd.internal.v1.opt']
  path = "{scratch}/opt"
"""
    )
    log = scratch / "containerd.log"
    with log.open("wb") as output:
        process = subprocess.Popen([str(binaries.containerd), "-c", str(configuration)], stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + _PATIENCE
        while not socket.is_socket():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"containerd did not start: {log.read_text(errors='replace').strip()[-500:]}")
            time.sleep(0.02)
        for image in images:
            import_image(binaries, socket, image)
    finally:
        process.terminate()
        process.wait(_PATIENCE)


def _drop_old(folder: Path) -> None:
    """Remove what was last wanted long ago. Stores that share its files keep them."""
    for old in filter(Path.is_dir, folder.iterdir()):
        if time.time() - old.stat().st_mtime > _KEPT_SECONDS:
            shutil.rmtree(old)


def _run(command: list[str]) -> None:
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        raise RuntimeError(f"{' '.join(command[:2])} … {command[-1]}: {found.stderr.strip()[-500:]}")

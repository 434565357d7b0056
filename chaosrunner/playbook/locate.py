"""Names of playbooks and drills to files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from chaosrunner.errors import UserError
from chaosrunner.playbook.expressions import suggest

Folder = Literal["playbooks", "drills"]
_PACKAGE = Path(__file__).parent.parent
_ENDINGS = (".yaml", ".yml")


def folders(kind: Folder) -> list[Path]:
    """Where names are looked for, in this order: the working directory, the wheel, the checkout."""
    candidates = [Path(kind), _PACKAGE / "shipped" / kind, _PACKAGE.parent / kind]
    return [folder for folder in candidates if folder.is_dir()]


def available(kind: Folder) -> dict[str, Path]:
    """Every file that has a name, by name; earlier folders win."""
    found: dict[str, Path] = {}
    for folder in folders(kind):
        for path in sorted(folder.iterdir()):
            if path.suffix in _ENDINGS and path.is_file():
                found.setdefault(path.stem, path)
    return found


def resolve(name: str, kind: Folder, beside: Path | None = None) -> Path:
    """The file that a name or path means.

    A path (it has a `/` or ends in .yaml) is relative to `beside`, the folder of the file that names it, or else to
    the working directory. Raises `UserError` with near names.
    """
    if "/" in name or name.endswith(_ENDINGS):
        tried = [folder / Path(name).expanduser() for folder in ([beside] if beside else []) + [Path()]]
        for path in tried:
            if path.is_file():
                return path
        here = tried[0].parent
        others = [path.name for path in here.iterdir()] if here.is_dir() else []
        hint = suggest(Path(name).name, others)
        raise UserError(f"no such file: {name}" + (f" ({hint})" if hint else ""))
    known = available(kind)
    if name not in known:
        hint = suggest(name, known) or f"known: {', '.join(sorted(known)) or 'none'}"
        raise UserError(f'no {kind[:-1]} is named "{name}" ({hint})')
    return known[name]

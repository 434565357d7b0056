"""Credentials: where they come from, and that they never show."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, model_validator

from chaosrunner.errors import UserError
from chaosrunner.playbook.base import FilePath, Model, mistake


class Secret(Model):
    """A credential, by reference: exactly one of `env`, `file`, `value`.

    Only `resolve()` shows it; representation and serialisation are redacted.
    """

    env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Environment variable that holds it."""
    file: FilePath | None = None
    """File that holds it, read anew each time it is needed (tokens are rotated); relative to the file that names it."""
    value: SecretStr | None = None
    """The credential itself; recordings and reports show it redacted, but the file still tells it."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_plain(cls, data: Any) -> Any:
        if isinstance(data, str):
            raise mistake(
                "expected a reference to a credential, not the credential", "write {env: NAME} or {file: PATH}"
            )
        return data

    @model_validator(mode="after")
    def _exactly_one(self) -> Secret:
        given = [name for name in ("env", "file", "value") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise mistake(f"a credential has exactly one of env, file, value; found {found}", "like {env: API_KEY}")
        return self

    def resolve(self) -> str:
        """The credential, without surrounding white space; reads the environment or the file now.

        Raises `UserError` where the variable is not set, the file cannot be read, or the credential is empty.
        """
        if self.env is not None:
            text = os.environ.get(self.env)
            if text is None:
                raise UserError(f"environment variable {self.env} is not set; it holds a credential of the drill")
            source = f"environment variable {self.env}"
        elif self.file is not None:
            try:
                text = Path(self.file).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise UserError(f"credential file {self.file} cannot be read: {error}") from error
            source = f"credential file {self.file}"
        else:
            text = self.value.get_secret_value() if self.value else ""
            source = "value of the credential"
        if not text.strip():
            raise UserError(f"{source} is empty")
        return text.strip()

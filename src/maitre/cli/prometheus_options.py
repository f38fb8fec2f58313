"""How a verb that asks a Prometheus is told who asks."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from maitre.errors import UsageError

if TYPE_CHECKING:
    from maitre.prometheus.access import Access


@Parameter(name="*")
@dataclass(frozen=True)
class PrometheusOptions:
    """Prometheus: who asks. A user and password may stand in the address: prometheus:https://USER:PASSWORD@HOST."""

    _: KW_ONLY
    header: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """A header of every request, as 'NAME: VALUE'."""
    tenant: str | None = None
    """The tenant of Mimir or Cortex (X-Scope-OrgID)."""
    bearer_token_file: Path | None = None
    """A file with the token alone."""
    ca_file: Path | None = None
    """The authorities that are trusted, PEM; those of the system when not given."""
    client_cert: Path | None = None
    """Our certificate, PEM; may hold the key too."""
    client_key: Path | None = None
    """Its key, PEM."""
    insecure: Annotated[bool, Parameter(negative="")] = False
    """Trust any certificate."""
    timeout: str | None = None
    """For one answer, such as 30s; 60 s when not given."""

    def access(self) -> Access:
        """What the options say.

        Raises:
            UsageError: a header or the timeout cannot be read.
        """
        from maitre.prometheus.access import TIMEOUT_S, Access
        from maitre.units import parse_duration_s

        return Access(
            headers=tuple(_read_header(text) for text in self.header),
            bearer_token_file=self.bearer_token_file,
            tenant=self.tenant,
            ca_file=self.ca_file,
            client_cert=self.client_cert,
            client_key=self.client_key,
            insecure=self.insecure,
            timeout_s=TIMEOUT_S if self.timeout is None else parse_duration_s(self.timeout),
        )

    def refuse(self, max_model_len: str | None = None) -> None:
        """Say that nothing is asked of a Prometheus.

        Args:
            max_model_len: one more option that speaks of its server.

        Raises:
            UsageError: an option is given.
        """
        if self != ANYBODY or max_model_len is not None:
            raise UsageError(
                "--header, --tenant, --max-model-len and the like are for a Prometheus",
                "name one: maitre profile prometheus:https://HOST",
            )


def _read_header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise UsageError(f"--header {name[:40]}: no header", "write 'NAME: VALUE'")
    return name.strip(), value.strip()


ANYBODY = PrometheusOptions()
"""Nothing given: the default of a verb's parameter."""

"""`recover`: puts back what a run left changed whose process is gone."""

from __future__ import annotations

from typing import Any

import click

from chaosrunner.cli.commands import Command
from chaosrunner.cli.options import cluster_options, output_option, timelines_option


@click.command(
    cls=Command,
    examples="""
    chaosrunner recover
    chaosrunner recover --yes
    chaosrunner recover --from-cluster --context staging
    chaosrunner recover --toxiproxy http://toxiproxy.inference:8474 --foreign
    chaosrunner recover --forget 20261129-200920-0673
    """,
)
@timelines_option
@cluster_options(drill=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--from-cluster", is_flag=True, help="Also look for changes that only the cluster's objects tell of.")
@click.option("--toxiproxy", metavar="URL", help="Also look for our toxics on the Toxiproxy whose API is there.")
@click.option("--foreign", is_flag=True, help="Also undo runs of other hosts; you know that they are no longer alive.")
@click.option(
    "--forget",
    metavar="RUN",
    help="Try this run's changes once more, and give up those that cannot be put back: its cluster is gone.",
)
@output_option("text", "json")
def recover(**given: Any) -> None:
    """Put back what a killed run left changed.

    Reads the journals below --timelines, shows what it would put back, and asks. Where nobody is there to answer it
    changes nothing (exit code 6) unless --yes is given. Runs that are alive are left alone, and so is what a run's
    guardian is putting back. What somebody changed since is left as they want it. Doing it twice changes nothing. A
    Lease that a dead run still holds is removed.

    With --from-cluster the notes that chaosrunner leaves on what it changes are read too, on whatever machine that was:
    nodes, Deployments, StatefulSets, NetworkPolicies, Pods, and Leases that nobody renews. So a lost journal loses
    nothing. Runs of other machines are left alone unless --foreign says that they are dead.

    Where a cluster is gone for good, --forget RUN gives up what that run left there, so that it stands in the way of
    no other run. What is given up stays changed if the cluster is there after all; it is told with the command that
    undoes it by hand.

    Exit code 6 if it was not confirmed; 5 if something could not be put back or a journal not be read; 3 if something
    was left alone because nobody here can tell whether its run is alive.
    """
    from chaosrunner.cli.recovering import recover

    raise click.exceptions.Exit(recover(**given))

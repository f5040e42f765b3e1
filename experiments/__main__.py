"""The command line of the experiments: `python -m experiments --help`."""

import typer

from dorfl.cli.screen import EPILOG, Commands
from experiments.commands.benchmark import benchmark
from experiments.commands.compare import compare
from experiments.commands.reproduce import reproduce
from experiments.commands.theory import theory

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    epilog=EPILOG,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="The paper's study, the checks of its statements, and the benchmark of networks.",
)
for command in (reproduce, theory, benchmark, compare):
    app.command()(command)

if __name__ == "__main__":
    app(prog_name="python -m experiments")

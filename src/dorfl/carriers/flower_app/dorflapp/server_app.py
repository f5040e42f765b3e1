"""Run the coordinator of a study in a ServerApp."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from dorfl.carriers.flower import run_study

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run or resume the study that the run's configuration names."""
    run_study(grid, context.run_config)

"""Run the rounds and write the model."""

import numpy as np
import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from dorfl.flower.strategy import RobustStrategy
from flowerapp.task import Net, training

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    method, plan = training(context.run_config)
    torch.manual_seed(plan.seed)
    model = Net()
    strategy = RobustStrategy(method, model, plan, min_available_nodes=3)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=int(context.run_config["num-server-rounds"]),
    )
    np.savez("model.npz", **{name: array.numpy() for name, array in result.arrays.items()})
    last = max(result.evaluate_metrics_clientapp)
    print("mixture:", {name: round(share, 3) for name, share in strategy.lam.items()})
    print("test accuracy:", dict(result.evaluate_metrics_clientapp[last]))

"""Train and evaluate on the rows of one client."""

import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from dorfl.flower import client
from flowerapp.task import Net, load_data, training

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    rows, _ = load_data(int(context.node_config["partition-id"]), context.run_config)
    method, plan = training(context.run_config)
    return client.train(msg, context, rows, method, Net(), plan)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    _, (X, y) = load_data(int(context.node_config["partition-id"]), context.run_config)
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    with torch.no_grad():
        right = model(torch.from_numpy(X)).argmax(1) == torch.from_numpy(y)
    metrics = MetricRecord({"accuracy": float(right.float().mean()), "num-examples": len(y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)

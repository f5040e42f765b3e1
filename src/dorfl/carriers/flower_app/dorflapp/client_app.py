"""Forward a request to the site's own process, and its signed reply back. No row is here."""

import socket

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query("dorfl")
def forward(message: Message, context: Context) -> Message:
    """Carry one envelope over the site's Unix socket."""
    site, request = (message.content["dorfl"][name] for name in ("site", "request"))
    assert isinstance(site, str)
    assert isinstance(request, bytes)
    place = context.node_config.get("socket")
    if place is None:  # in simulation nodes have no settings of their own
        place = f"{context.run_config['sockets']}/{site}.sock"
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(place))
        line.sendall(request)
        line.shutdown(socket.SHUT_WR)
        reply = b"".join(iter(lambda: line.recv(1 << 16), b""))
    return Message(RecordDict({"dorfl": ConfigRecord({"reply": reply})}), reply_to=message)

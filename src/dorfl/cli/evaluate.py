"""`dorfl evaluate`: how well a model serves each client."""

from __future__ import annotations

from dorfl.cli.folders import Client, ModelFolder, NewTable, Site, labelled_rows
from dorfl.cli.screen import Screen, heading


def evaluate(
    model: ModelFolder,
    data: NewTable,
    client: Client = None,
    site: Site = None,
) -> None:
    """Measure a model on rows with labels, client by client.

    Example: dorfl evaluate model test.csv
    """
    from dorfl.study.model import load  # noqa: PLC0415 - slow to import, and --help need not wait
    from dorfl.study.rows import auc, measure  # noqa: PLC0415

    screen, loaded = Screen(), load(model)
    rows = labelled_rows(loaded, data, client, site)
    for note in rows.notes:
        screen.note(note)
    areas = auc(loaded, rows)
    served = [
        {**told._asdict(), **({"auc": areas[told.name]} if told.name in areas else {})}
        for told in measure(loaded, rows)
    ]
    score = "accuracy" if loaded.classifies else "mean abs. error"
    columns = ["client", "rows", "loss", score] + ["AUC"] * (len(loaded.classes) == 2)
    table = heading(f"{loaded.label} in {data.name}", *columns)
    total = sum(entry["rows"] for entry in served)
    overall = {
        key: sum(entry["rows"] * entry[key] for entry in served) / total
        for key in ("loss", "score")
    }
    for entry in [*served, {"name": "all rows", "rows": total, **overall}]:
        cells = [
            entry["name"],
            f"{entry['rows']:,}",
            f"{entry['loss']:.4f}",
            f"{entry['score']:.4g}",
        ]
        if len(loaded.classes) == 2:
            cells.append(f"{entry['auc']:.4f}" if "auc" in entry else "")
        table.add_row(*cells)
    screen.table(table)
    worst = (min if loaded.classifies else max)(served, key=lambda entry: entry["score"])
    screen.say(f"worst served: {worst['name']}")
    screen.give({"measure": score, "clients": served, "overall": overall, "worst": worst["name"]})

"""What a person reads says what was measured, whatever the names in it, and stays where it is."""

import csv
import html.parser
import io
import json
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from browser import CHROMIUM, browser
from cases import few
from dorfl.report import content, figures, tables
from dorfl.report.content import (
    Beside,
    Details,
    Figure,
    Finding,
    Measured,
    Page,
    Section,
    Series,
    Table,
    Text,
)
from dorfl.report.page import export, render, write
from dorfl.report.plots import plot
from dorfl.report.style import looks
from dorfl.report.tables import tex
from dorfl.support.files import write_whole

HOSTILE = "<script>window.hit = 1</script><img src=x onerror='window.hit = 1'>\"&$x_{ </title>"
ACCURACY = Table(
    "accuracy",
    "Accuracy in %",
    ("method", "overall", "rounds"),
    [
        ("ERM", Measured(70.523, 0.412), 8),
        ("DOR-FL", Measured(95.04, math.nan), 9),
        ("GDRFL", Measured(95.01, 0.1), None),
        ("Bayes rule", Measured(95.4, 0.05), None),
    ],
    {"overall": ".1f"},
    best={"overall": "max", "rounds": "min"},
    reference=("Bayes rule",),
)


def every_kind(name="DOR-FL"):
    """A figure of each kind, all with a series of the given name."""
    places, spokes = [1.0, 2.0, 4.0], ["White", "Black", name]
    series = [Series(name, places, [0.5, 0.2, 0.1], [0.01] * 3), Series("ERM", places, [1, 2, 3])]
    named = [Series(name, spokes, [80, 85, 90], [1, 1, 1]), Series("ERM", spokes, [70, 75, 72])]
    points = [Series(name, places, [-1, 0, 1], hover=[name, "b", "c"])]
    return [
        Figure("lines", name, name, name, series, x_log=True, y_log=True, note=name, alt=name),
        Figure("points", name, name, name, points, "points"),
        Figure("bars", name, "", name, named, "bars"),
        Figure("dots", name, "", name, named, "dots"),
        Figure("heat", name, name, name, named, "heat", y_range=(0, 100)),
    ]


def page_of(name):
    """A page with every kind of block, the name wherever a user's own words could be."""
    table = Table("t", name, (name, "b"), [(name, 1.0), ("c", 2.0)], best="max", note=name)
    wide = Table("wide", name, [f"column {k}" for k in range(20)], [[1.5] * 20])
    lines, points, bars, dots, heat = every_kind(name)
    return Page(
        name,
        name,
        [Finding(name, name, True), Finding(name, name, False), Finding(name, name)],
        [
            Section(name, [Text([name, "a `code` word"]), table, lines, Beside([dots, bars])]),
            Section(name, [Details(name, [wide]), points, heat]),
        ],
    )


def test_csv_carries_every_digit():
    assert tables.as_csv(ACCURACY) == (
        "method,overall,overall error,rounds\n"
        "ERM,70.523,0.412,8\nDOR-FL,95.04,nan,9\nGDRFL,95.01,0.1,\nBayes rule,95.4,0.05,\n"
    )


@given(st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs", "Cc"])), st.floats())))
def test_csv_reads_back_as_it_was(rows):
    table = Table("t", "T", ("name", "value"), [(name, np.float64(value)) for name, value in rows])
    back = list(csv.reader(io.StringIO(tables.as_csv(table), newline="")))[1:]
    assert [name for name, _ in back] == [name for name, _ in rows]
    assert [float(x).hex() for _, x in back] == [float(x).hex() for _, x in rows]


def test_markdown_marks_the_best_and_sets_references_apart():
    assert tables.as_markdown(ACCURACY) == (
        "| method | overall | rounds |\n| --- | ---: | ---: |\n"
        "| ERM | 70.5 ± 0.4 | **8** |\n| DOR-FL | **95.0** | 9 |\n| GDRFL | **95.0 ± 0.1** |  |\n"
        "| *Bayes rule* | *95.4 ± 0.1* |  |\n"
    )


def test_latex_is_booktabs():
    assert tables.as_latex(ACCURACY).splitlines() == [
        r"\begin{table}",
        r"\caption{Accuracy in \%}\label{tab:accuracy}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"method & overall & rounds \\",
        r"\midrule",
        r"ERM & 70.5 $\pm$ 0.4 & \textbf{8} \\",
        r"DOR-FL & \textbf{95.0} & 9 \\",
        r"GDRFL & \textbf{95.0 $\pm$ 0.1} &  \\",
        r"\midrule",
        r"Bayes rule & 95.4 $\pm$ 0.1 &  \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


@given(st.text())
def test_latex_leaves_nothing_special(text):
    """Once the commands we write ourselves are taken out, no character means anything to TeX."""
    left = re.sub(r"\$[^$]*\$|\\[a-zA-Z]+\{\}|\\[{}&%$#_]", "", tex(text).replace(r"\$", ""))
    assert not re.search(r"[\\{}&%$#_~^\n]", left)


@pytest.mark.parametrize(
    ("cell", "form", "words"),
    [
        (0.123456, "", "0.1235"),
        (48842, "", "48,842"),
        (123456.7, "", "123,457"),
        (4.6e-9, ".2g", "4.6·10⁻⁹"),
        (1e-6, ".2g", "10⁻⁶"),
        (-3, "", "−3"),
        (math.nan, ".1f", "–"),
        (math.inf, "", "inf"),
        (Measured(0.5, 0.012), "", "0.5 ± 0.012"),
        (Measured(23254.2, 760.4), "", "23,254 ± 760"),
        (Measured(-9098.3, 1350.2), "", "−9,098 ± 1,350"),
        (Measured(1234.5, 0.052), "", "1,234.500 ± 0.052"),
        (None, ".1f", ""),
        (True, "", "yes"),
        (np.float64(2.5), ".2f", "2.50"),
        (np.int64(7), "", "7"),
        (np.bool_(False), "", "no"),
    ],
)  # fmt: skip
def test_cells_are_set_for_reading(cell, form, words):
    assert tables.lines(Table("t", "T", ("a", "b"), [("x", cell)], form))[0].cells[1] == words


def test_a_row_of_the_wrong_length_is_named():
    with pytest.raises(ValueError, match="table 't' has 2 columns but a row of 1 cells"):
        tables.as_csv(Table("t", "T", ("a", "b"), [("x",)]))


def test_numbers_of_a_figure_line_up_by_x():
    first, second = Series("a", [1, 2], [10.0, 20.0]), Series("b", np.array([2, 3]), [5.0, 6.0])
    table = content.numbers(Figure("f", "F", "x", "y", [first, second]))
    assert table.columns == ("x", "a", "b")
    assert table.rows == [(1, 10.0, None), (2, 20.0, 5.0), (3, None, 6.0)]
    scattered = content.numbers(every_kind()[1])
    assert scattered.rows[0] == ("DOR-FL", 1.0, -1, "DOR-FL")


@pytest.mark.parametrize(
    ("series", "words"),
    [([], "no series"), ([Series("a", [1, 2], [1.0])], "series 'a': .* there are .2, 1.")],
)
def test_a_figure_that_cannot_be_drawn_is_named(series, words):
    page = Page("P", "", sections=[Section("S", [Figure("f", "F", "x", "y", series)])])
    with pytest.raises(ValueError, match=f"figure 'f'.*{words}"):
        render(page)


def test_the_terminal_shows_what_the_page_shows():
    console = Console(file=io.StringIO(), width=100)
    console.print(tables.as_rich(ACCURACY._replace(title="[red]as it is[/]")))
    assert "[red]as it is[/]" in console.file.getvalue()
    assert "70.5 ± 0.4" in console.file.getvalue()


def test_a_logarithmic_axis_needs_positive_values():
    curve = Series("a", [1.0, 2.0], [1.0, -1.0])
    figure = Figure("f", "F", "x", "y", [curve], x_log=True, y_log=True)
    assert content.log_axes(figure) == (True, False)
    assert plot(figure).layout.yaxis.type is None


@pytest.mark.parametrize("count", [8, 15, 40])
def test_many_series_keep_colours_of_their_own(count):
    found = looks([f"class {k}" for k in range(count)])
    assert len({look.colour for look in found}) == count


def test_lines_are_told_apart_without_colour():
    names = ["ERM", "AFL", "WAFL", "GDRFL", "DOR-FL", "clean rows only", "Bayes rule"]
    found = looks(names)
    assert len({(look.dash, look.width < 2.0) for look in found}) == len(names)
    long = Figure("f", "F", "x", "y", [Series(n, range(500), range(500)) for n in ("a", "b")])
    drawn = plot(long).data
    assert len({trace.marker.symbol for trace in drawn}) == 2
    assert all(trace.marker.maxdisplayed == 12 for trace in drawn)


def test_lines_that_coincide_are_all_seen():
    x, low, high = [1, 2, 3], [1.0, 2.0, 3.0], [10.0, 20.0, 30.0]
    series = [Series(name, x, low) for name in "abc"] + [Series("d", x, high)]
    figure = Figure("f", "F", "x", "y", series)
    assert content.nesting(figure) == [2, 1, 0, 0]
    widths = [trace.line.width for trace in plot(figure).data]
    assert widths[0] > widths[1] > widths[2] == widths[3]


def test_dots_have_a_line_for_every_name():
    names = [f"a client with a rather long name {k}" for k in range(63)]
    figure = Figure("f", "F", "", "accuracy", [Series("a", names, range(63), [1.0] * 63)], "dots")
    drawn = plot(figure)
    assert list(drawn.layout.yaxis.tickvals) == list(range(63))
    assert list(drawn.data[0].x) == list(range(63)) and drawn.data[0].error_x.array[0] == 1.0
    height = float(re.search(r'style="height: ([\d.]+)rem"', render(_alone(figure)))[1])
    assert height > 63 * 2  # two lines of text each


def _alone(*blocks):
    return Page("P", "", sections=[Section("S", blocks)])


def test_numbers_of_many_series_go_down_not_across():
    figure = Figure("f", "F", "x", "y", [Series(f"s{k}", [1, 2], [k, k]) for k in range(40)])
    assert content.numbers(figure).columns == ("series", "x", "y")


def test_the_claim_says_whose_it_is():
    page = Page("P", "", [Finding("it works", "1 %", False, "the paper")])
    assert "✗ does not hold (claim: the paper)" in render(page)


def test_a_method_has_one_colour_everywhere():
    names = ["ERM", "dorfl", "DOR-FL (per client)", "Bayes rule", "DORO", "DOR-FL"]
    found = looks(names)
    assert len({found[k].colour for k in (1, 2, 5)}) == 1
    assert len({(look.colour, look.dash) for look in found}) == len(names)
    for figure in every_kind()[:4]:
        styles = [look.colour for look in looks([one.label for one in figure.series])]
        drawn = figures.svg(figure).decode()
        assert all(colour in drawn for colour in styles)
        assert [trace.marker.color for trace in plot(figure).data] == styles


@pytest.mark.parametrize("figure", few(every_kind(), 2), ids=lambda figure: figure.kind)
def test_the_same_figure_is_the_same_file(figure, tmp_path):
    paths = figures.draw(figure, tmp_path / "a")
    assert [path.suffix for path in paths] == [".png", ".svg", ".pdf"]
    for first, second in zip(paths, figures.draw(figure, tmp_path / "b"), strict=True):
        assert first.read_bytes() == second.read_bytes()


@pytest.mark.slow
def test_export_writes_every_figure_and_table(tmp_path):
    page = page_of(HOSTILE)
    paths = export(page, tmp_path)
    assert all(path.stat().st_size for path in paths)
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")}
    names = [figure.kind for figure in every_kind()]
    assert found == {
        *(f"figures/{name}.{suffix}" for name in names for suffix in ("png", "svg", "pdf", "csv")),
        *(f"tables/{name}.{suffix}" for name in ("t", "wide") for suffix in ("csv", "md", "tex")),
    }


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "a b"])
def test_a_name_that_is_no_file_name_is_refused(name, tmp_path):
    page = Page("P", "", sections=[Section("S", [ACCURACY._replace(name=name)])])
    with pytest.raises(ValueError, match="letters, digits"):
        export(page, tmp_path)
    with pytest.raises(ValueError, match="letters, digits"):
        render(page)
    twice = page._replace(sections=[Section("S", [ACCURACY, ACCURACY])])
    with pytest.raises(ValueError, match="two tables are named 'accuracy'"):
        render(twice)


class Tags(html.parser.HTMLParser):
    """The tags of a page with their attributes, and its visible words."""

    def __init__(self):
        super().__init__()
        self.tags, self.words = [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.words.append(data)


def test_what_users_name_is_text_and_nothing_else():
    parsed = Tags()
    parsed.feed(render(page_of(HOSTILE)))
    tags = [tag for tag, _ in parsed.tags]
    assert tags.count("script") == 2 + 5  # ours, Plotly, and the data of five plots
    assert tags.count("img") == 5
    assert not [a for _, attributes in parsed.tags for a in attributes if a.startswith("on")]
    addresses = [a.get("href") or a.get("src") or "#" for _, a in parsed.tags]
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert parsed.words.count(HOSTILE) >= 15
    ids = [a["id"] for _, a in parsed.tags if "id" in a]
    assert len(ids) == len(set(ids))


@pytest.mark.slow
def test_a_page_is_whole_or_not_there(tmp_path, monkeypatch):
    path = tmp_path / "new" / "report.html"
    page = page_of("A study")
    write(page, path)
    assert path.read_text(encoding="utf-8") == render(page)
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", _fails)
    with pytest.raises(OSError, match="disk"):
        write_whole(path, b"half")
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def _fails(*_):
    raise OSError("disk")


def test_every_figure_and_table_is_described():
    parsed = Tags()
    parsed.feed(render(page_of("A study")))
    plots = [a for tag, a in parsed.tags if a.get("class") == "plot"]
    pictures = [a for tag, a in parsed.tags if tag == "img"]
    assert all(a["aria-label"] for a in plots) and all(a["alt"] for a in pictures)
    assert [t for t, _ in parsed.tags].count("table") == [t for t, _ in parsed.tags].count(
        "caption"
    )
    headings = [a for tag, a in parsed.tags if tag == "th"]
    assert all(a["scope"] in {"row", "col"} for a in headings)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: `apt-get install chromium`")
@pytest.mark.slow
def test_a_browser_opens_it(tmp_path):
    path = write(page_of(HOSTILE), tmp_path / "report.html")
    with browser() as tab:
        tab.prefer(prefers_color_scheme="light")
        tab.resize(1280, 900)
        tab.open(path)
        tab.wait_for("document.documentElement.dataset.drawn === '5'")

        assert tab.evaluate("document.querySelectorAll('.plot > .plot-container').length") == 5
        assert tab.evaluate("document.querySelectorAll('.plot .scatterlayer .trace').length") == 5
        assert tab.evaluate("document.querySelectorAll('.plot .bars path').length") >= 6
        assert tab.evaluate("document.querySelectorAll('.plot .hm').length") == 1
        assert tab.evaluate("document.title") == HOSTILE
        assert tab.evaluate("window.hit") is None

        # The keyboard gets to the content, the theme and the series, in this order.
        order = [_next_stop(tab) for _ in range(2)]
        assert order == ["skip", "theme"]
        light = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        tab.press("Enter")
        assert tab.evaluate("document.getElementById('theme').ariaPressed") == "true"
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != light
        tab.wait_for(f"{_FONT} === getComputedStyle(document.body).color")
        tab.evaluate("document.querySelector('.legend button').click()")
        tab.wait_for("document.querySelectorAll('.plot .scatterlayer .trace').length === 4")

        tab.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true })")
        tab.wait_for("document.querySelector('.fold .scroll').tabIndex === 0")

        # A telephone scrolls down, never sideways; its system's choice is followed.
        tab.evaluate("localStorage.clear()")
        tab.prefer(prefers_color_scheme="dark")
        tab.resize(360, 740)
        tab.open(path)
        tab.wait_for("document.documentElement.dataset.drawn === '5'")
        tab.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true })")
        assert tab.evaluate("document.documentElement.scrollWidth") == 360
        assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
        folded = "document.querySelector('.fold .scroll')"  # each row a table of its own
        assert tab.evaluate(f"{folded}.scrollWidth === {folded}.clientWidth")

        assert tab.pdf().startswith(b"%PDF")
        said = tab.heard("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        assert not said, json.dumps(said)[:2000]
        asked = {sent["request"]["url"] for sent in tab.heard("Network.requestWillBeSent")}
        assert {url for url in asked if not url.startswith("data:")} == {path.as_uri()}


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: `apt-get install chromium`")
@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_clipped(tmp_path, width):
    """Tables with more columns than there is room for, long names, and the first screen."""
    score = Measured(95.04, 0.12)
    groups = [f"group {k}" for k in range(8)]
    settings = "ρ = 20, β = 1, ρ₂ = 0.2 (3 of 10); ρ = 5, β = 0.2, ρ₂ = 0.2 (7 of 10)"
    methods = ["ERM", "DOR-FL", "dro (Wasserstein), pooled"]
    columns = ("method", "clean", "contaminated", "chosen, clean", "chosen")
    rows = [(m, score, score, settings, settings) for m in methods]
    tuned = Table("tuned", "Tuned", columns, rows, ".2f", best="max")
    wide = Table("groups", "By group", ("method", *groups), [(m, *[score] * 8) for m in methods],
                 ".2f", best="max")  # fmt: skip
    lines, points, *_ = every_kind()
    sections = [Section("S", [tuned, wide, *every_kind()[2:]])]
    cards = [Finding("a claim", "≥ 93.9 %", True)] * 3
    page = Page("A study", "In short.", cards, sections, [Beside([lines, points])])
    path = write(page, tmp_path / "report.html")
    with browser() as tab:
        tab.resize(width, 800)
        tab.open(path)
        tab.wait_for("document.documentElement.dataset.drawn === '5'")
        assert tab.evaluate("document.documentElement.scrollWidth") == width
        boxes = "[...document.querySelectorAll('.block > .scroll')]"
        assert tab.evaluate(f"{boxes}.length") == 2
        assert tab.evaluate(f"{boxes}.every((box) => box.scrollWidth <= box.clientWidth)")
        seen = "[...document.querySelectorAll('td')].every((cell) => cell.offsetParent)"
        assert tab.evaluate(seen)
        if width > 600:  # the picture is on the first screen
            assert (
                tab.evaluate("document.querySelector('.plot').getBoundingClientRect().bottom") < 800
            )


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: `apt-get install chromium`")
@pytest.mark.slow
def test_a_wide_table_fits_on_paper(tmp_path):
    columns = ("method", *(f"accuracy {k}" for k in range(8)))
    rows = [(name, *[Measured(95.04, 0.12)] * 8) for name in ("ERM", "DOR-FL")]
    table = Table("groups", "By group", columns, rows, ".2f", best="max")
    path = write(Page("A study", "In short.", [], [Section("S", [table])]), tmp_path / "page.html")
    with browser() as tab:
        tab.resize(718, 800)  # A4 in CSS pixels, within margins of 1 cm
        tab.open(path)
        tab.send("Emulation.setEmulatedMedia", media="print")
        assert tab.evaluate("document.documentElement.scrollWidth") == 718


_FONT = "getComputedStyle(document.querySelector('.plot .xtick text')).fill"


def _next_stop(tab):
    tab.press("Tab")
    return tab.evaluate("document.activeElement.id || document.activeElement.className")

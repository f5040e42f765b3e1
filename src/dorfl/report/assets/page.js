"use strict";
// In the head, before anything is painted: with scripts, plots take the place of pictures.
const root = document.documentElement;
const scripts = {}; // what draws a figure anew as its sliders move: (data, values) → { x, y }
root.classList.add("scripted");

const dark = matchMedia("(prefers-color-scheme: dark)");
const stored = {
  // A page opened from a file may have no storage; then the choice lasts as long as the page.
  get: () => { try { return localStorage.getItem("theme"); } catch { return null; } },
  set: (name) => { try { localStorage.setItem("theme", name); } catch { /* see above */ } },
};
const choose = () => { root.dataset.theme = stored.get() ?? (dark.matches ? "dark" : "light"); };
choose();

function colours() {
  const style = getComputedStyle(root);
  const value = (name) => style.getPropertyValue(name).trim();
  const axis = (path) => ({
    [`${path}.gridcolor`]: value("--grid"),
    [`${path}.linecolor`]: value("--line"),
    [`${path}.tickcolor`]: value("--line"),
  });
  return {
    "font.color": value("--text"),
    "font.family": value("--sans"),
    "hoverlabel.bgcolor": value("--raised"),
    "hoverlabel.bordercolor": value("--line"),
    "hoverlabel.font.color": value("--text"),
    "modebar.color": value("--muted"),
    "modebar.activecolor": value("--text"),
    "modebar.bgcolor": "rgba(0,0,0,0)",
    ...axis("xaxis"),
    ...axis("yaxis"),
  };
}

function paint(plot) {
  const layout = colours();
  const bars = plot.data.every((trace) => trace.type === "bar");
  return Plotly.update(plot, bars ? { "error_y.color": layout["font.color"] } : {}, layout);
}

function setUpTheme(plots) {
  const button = document.getElementById("theme");
  const show = () => {
    button.setAttribute("aria-pressed", String(root.dataset.theme === "dark"));
    for (const plot of plots) if (plot.layout) paint(plot);
  };
  button.addEventListener("click", () => {
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    stored.set(root.dataset.theme);
    show();
  });
  dark.addEventListener("change", () => { choose(); show(); });
  show();
}

async function draw(plot) {
  const figure = plot.closest("figure");
  const { data, layout, live } = JSON.parse(figure.querySelector("script").textContent);
  layout.showlegend = false; // the buttons above each plot are reached by keyboard, and wrap
  if (matchMedia("(pointer: coarse)").matches) layout.dragmode = false; // a finger scrolls
  await Plotly.newPlot(plot, data, layout, {
    responsive: true,
    displaylogo: false,
    displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    toImageButtonOptions: { filename: figure.id },
  });
  await paint(plot);
  if (live) setUpSliders(figure, plot, live);
  figure.querySelectorAll(".legend button").forEach((button, place) => {
    button.addEventListener("click", () => {
      const seen = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(seen));
      Plotly.restyle(plot, { visible: seen }, [place]);
    });
  });
}

function setUpSliders(figure, plot, live) {
  const sliders = [...figure.querySelectorAll(".sliders input")];
  const show = () => {
    const values = sliders.map((slider) => Math.exp(Number(slider.value)));
    sliders.forEach((slider, k) => {
      slider.previousElementSibling.textContent = Number(values[k].toPrecision(2));
    });
    const { x, y } = scripts[live.script](live.data, values);
    Plotly.restyle(plot, { x, y }, [...x.keys()]);
  };
  for (const slider of sliders) slider.addEventListener("input", show);
}

function followReader() {
  const links = new Map(
    [...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]),
  );
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(entry.target.id).setAttribute("aria-current", "location");
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  for (const id of links.keys()) watcher.observe(document.getElementById(id));
}

function reachScrolling() {
  // What scrolls must be reached by keyboard; what does not would only be in the way.
  for (const box of document.querySelectorAll(".scroll")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}

function unfold(open) {
  for (const part of document.querySelectorAll(".fold")) {
    if (open) part.dataset.open = part.open;
    part.open = open || part.dataset.open === "true";
  }
}

addEventListener("DOMContentLoaded", async () => {
  const plots = document.querySelectorAll(".plot");
  setUpTheme(plots);
  followReader();
  reachScrolling();
  addEventListener("resize", reachScrolling);
  addEventListener("beforeprint", () => unfold(true));
  addEventListener("afterprint", () => unfold(false));
  document.addEventListener("toggle", reachScrolling, true); // what was folded away has a width now
  for (const plot of plots) {
    await draw(plot);
    await new Promise((resolve) => setTimeout(resolve)); // let the reader scroll in between
  }
  root.dataset.drawn = plots.length;
});

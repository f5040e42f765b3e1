// The outlines of dorfl.paper.ambiguity, computed as there, for any β and r.
scripts.ambiguity = ({ kinds, cost, outlines, count }, [beta, radius]) => {
  const tilted = (values, tau, weights) => {
    if (tau === Infinity) return values.reduce((sum, v, j) => sum + weights[j] * v, 0);
    const top = Math.max(...values.filter((_, j) => weights[j] > 0));
    const sum = values.reduce((s, v, j) => s + (weights[j] ? weights[j] * Math.exp((v - top) / tau) : 0), 0);
    return top + tau * Math.log(sum);
  };
  const places = cost[0].map((_, j) => j);
  const least = places.map((j) => Math.min(...cost.map((row) => row[j])));

  function reach(u, clients, tau) { // min over ρ of ρ r + max_i ρβ log E_i exp(f_ρ/ρβ)
    const gain = kinds.map((a) => a[0] * u[0] + a[1] * u[1]);
    const bound = (price) => {
      const f = places.map((j) => Math.max(...gain.map((g, k) => g - price * cost[k][j])));
      return price * radius + Math.max(...clients.map((q) => tilted(f, price * tau, q)));
    };
    let low = Math.log(1e-4), high = Math.log(1e4); // convex in ρ, so it falls and then rises
    const part = (Math.sqrt(5) - 1) / 2;
    for (let k = 0; k < 60; k += 1) {
      const a = high - part * (high - low), b = low + part * (high - low);
      if (bound(Math.exp(a)) <= bound(Math.exp(b))) high = b; else low = a;
    }
    return bound(Math.exp((low + high) / 2));
  }

  function outline({ clients, plain }) {
    const tau = plain ? Infinity : beta;
    const near = Math.max(...clients.map((q) => tilted(least.map((c) => -c), tau, q)));
    if (radius + near < 0) return [[], []]; // nobody is that near
    const angles = Array.from({ length: count }, (_, k) => (2 * Math.PI * k) / count);
    const h = angles.map((a) => reach([Math.cos(a), Math.sin(a)], clients, tau));
    const corners = angles.map((a, k) => { // where two neighbouring tangents meet
      const b = angles[(k + 1) % count], g = h[(k + 1) % count], area = Math.sin(b - a);
      return [(h[k] * Math.sin(b) - g * Math.sin(a)) / area, (g * Math.cos(a) - h[k] * Math.cos(b)) / area];
    });
    corners.push(corners[0]);
    return [corners.map((p) => p[0]), corners.map((p) => p[1])];
  }

  const drawn = outlines.map(outline);
  return { x: drawn.map((d) => d[0]), y: drawn.map((d) => d[1]) };
};

"""Makes diagnose.json: expected head measures, rollout and flow.

Run in this folder: `python diagnose_golden.py`. Made with Python 3, numpy 2.4.6, networkx 3.6.1.

Sources:

- rollout: the formula of Abnar & Zuidema 2020, section 3, as in the authors' repository (samiraabnar/attention_flow):
  add the identity, divide rows by their sums, multiply from the bottom up
- flow: networkx.maximum_flow over the same layers as a graph, one pair of nodes at a time, rows divided by their sums
- measures: their definitions, one number at a time; diagonality by numerical integration of the cumulative attention
  diagonality of Shim, Choi, Sung 2022, not by the closed form
"""

import json
from pathlib import Path

import networkx as nx
import numpy as np

random = np.random.default_rng(7)


def weights(heads, queries, keys, sharpness, mask=None):
    scores = sharpness * random.normal(size=(heads, queries, keys))
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    # What a trace stores is f32.
    return (scores / scores.sum(-1, keepdims=True)).astype(np.float32)


def layers_of(stack):
    mean = [layer.astype(np.float64).mean(0) for layer in stack]
    residual = [layer + np.eye(len(layer)) for layer in mean]
    return [layer / layer.sum(-1, keepdims=True) for layer in residual]


def rollout(stack):
    joint = None
    for layer in layers_of(stack):
        joint = layer if joint is None else layer @ joint
    return joint


def flow(stack):
    layers = layers_of(stack)
    length = len(layers[0])
    graph = nx.DiGraph()
    for below, layer in enumerate(layers):
        for i in range(length):
            for j in range(length):
                graph.add_edge((below + 1, i), (below, j), capacity=layer[i, j])
    values = np.array(
        [[nx.maximum_flow_value(graph, (len(layers), i), (0, j)) for j in range(length)] for i in range(length)]
    )
    return values / values.sum(-1, keepdims=True)


def diagonality(row, query, queries):
    # The share of the weight within r of the diagonal, integrated over r.
    steps = 200_000
    keys = len(row)
    distance = np.abs(query / max(queries - 1, 1) - np.arange(keys) / max(keys - 1, 1))
    r = (np.arange(steps) + 0.5) / steps
    within = sum(w * (d <= r) for w, d in zip(row, distance))
    return within.mean()


def shortest_run(row):
    for length in range(1, len(row) + 1):
        if any(row[s : s + length].sum() >= 0.9 - 1e-6 for s in range(len(row) - length + 1)):
            return length
    return len(row)


def measures(map_, tokens=None):
    heads, queries, keys = map_.shape
    visible = (map_ > 0).any(0)
    own = tokens is not None
    out = []
    for head in map_.astype(np.float64):
        rows = [i for i in range(queries) if visible[i].sum() >= 2 and head[i].sum() > 0]
        unit = {i: head[i] / head[i].sum() for i in rows}
        entropy = {i: -sum(w * np.log(w) for w in unit[i] if w > 0) for i in rows}
        mean = np.mean([unit[i] for i in rows], 0)
        repeated = [i for i in rows if own and tokens[i] in tokens[:i]]
        out.append(
            {
                "rows": len(rows),
                "entropy": np.mean(list(entropy.values())),
                "uniformity": np.mean([entropy[i] / np.log(visible[i].sum()) for i in rows]),
                "first_token": mean[0],
                "top_key": [int(mean.argmax()), mean.max()],
                "diagonality": np.mean([diagonality(unit[i], i, queries) for i in rows]),
                "previous_token": np.mean([unit[i][i - 1] for i in rows if i > 0]) if own else None,
                "duplicate_token": np.mean(
                    [sum(unit[i][j] for j in range(i) if tokens[j] == tokens[i]) for i in repeated]
                )
                if repeated
                else None,
                "coverage": np.minimum(head.sum(0), 1).mean(),
                "effective_keys": np.mean([np.exp(entropy[i]) for i in rows]),
                "effective_span": np.mean([shortest_run(unit[i]) for i in rows]),
                "distance": np.mean([sum(w * abs(i - j) for j, w in enumerate(unit[i])) for i in rows])
                if own
                else None,
                "largest_weight": np.mean([unit[i].max() for i in rows]),
                "column_sums": head.sum(0).tolist(),
            }
        )
    return out


def case(map_, tokens=None):
    return {
        "shape": list(map_.shape),
        "weights": [float(w) for w in map_.ravel()],
        "tokens": tokens,
        "measures": measures(map_, tokens),
    }


def stack_case(heads, length, depth, sharpness, mask=None):
    stack = [weights(heads, length, length, sharpness, mask) for _ in range(depth)]
    return {
        "heads": heads,
        "length": length,
        "layers": [[float(w) for w in layer.ravel()] for layer in stack],
        "rollout": rollout(stack).ravel().tolist(),
        "flow": flow(stack).ravel().tolist(),
    }


causal = np.tril(np.ones((6, 6), bool))
golden = {
    "maps": [
        case(weights(2, 6, 6, 2.0), ["a", "b", "a", "c", "b", "a"]),
        case(weights(2, 6, 6, 1.0, causal), ["x", "x", "y", "x", "z", "y"]),
        case(weights(1, 4, 7, 3.0)),
        case(weights(1, 1, 5, 0.1)),
    ],
    "stacks": [
        stack_case(1, 4, 1, 1.0),
        stack_case(2, 5, 3, 2.0),
        stack_case(2, 6, 4, 3.0, causal),
    ],
}


def rounded(value):
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return float(f"{value:.12g}") if isinstance(value, float) else value


text = json.dumps(rounded(golden)).replace("}, {", "},\n{")
Path(__file__).with_name("diagnose.json").write_text(text + "\n")

"""A small decoder-only transformer in numpy: next-token log-probs, and gradients of a weighted sum of them.

Blocks of causal attention and a two-layer perceptron, each behind RMS normalization and a residual connection, on
learned token and position embeddings. Sequences of different lengths are padded at the end, where causal attention
never looks.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

from nemo_gym.errors import MissingExtraError

try:
    import numpy as np
    from numpy.typing import NDArray
except ModuleNotFoundError as error:
    raise MissingExtraError("tiny_policy", "train") from error

Array: TypeAlias = NDArray[np.float64]
Ids: TypeAlias = NDArray[np.int64]
Weights: TypeAlias = dict[str, Array]

RMS_EPSILON = 1e-6
MASKED = -1e9


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of the network."""

    vocabulary: int
    context: int = 64
    width: int = 32
    heads: int = 2
    layers: int = 2


def initial_weights(shape: Shape, seed: int) -> Weights:
    """Random weights. The output layer starts at zero, so that all tokens are equally likely; queries and keys start
    small, so that attention sees everything at first."""
    chance = np.random.default_rng(seed)
    width, scale = shape.width, shape.width**-0.5

    def normal(*size: int, by: float) -> Array:
        return chance.normal(0.0, by, size)

    weights = {
        "tokens": normal(shape.vocabulary, width, by=1.0),
        "positions": normal(shape.context, width, by=1.0),
        "output": np.zeros((width, shape.vocabulary)),
    }
    for layer in range(shape.layers):
        weights |= {
            f"qkv.{layer}": normal(width, 3 * width, by=scale) * np.repeat([0.3, 0.3, 1.0], width),
            f"attention.{layer}": normal(width, width, by=scale),
            f"up.{layer}": normal(width, 4 * width, by=scale),
            f"down.{layer}": normal(4 * width, width, by=scale / 2),
        }
    return weights


class Network:
    """Weights of a certain shape."""

    def __init__(self, shape: Shape, weights: Weights) -> None:
        self.shape, self.weights = shape, weights

    def log_probs(self, ids: Ids) -> Array:
        """For (batch, time) token ids, the log-probs of each next token: (batch, time, vocabulary)."""
        return _log_softmax(self._forward(ids)[0])

    def next_log_probs(self, ids: list[int]) -> Array:
        """The log-probs of the token after these."""
        result: Array = self.log_probs(np.array([ids]))[0, -1]
        return result

    def gradients(self, ids: Ids, coefficients: Array) -> Weights:
        """Gradients of the sum over positions t of `coefficients[:, t] * log p(ids[:, t + 1] | ids[:, :t + 1])`."""
        logits, tape = self._forward(ids[:, :-1])
        d_logits = -np.exp(_log_softmax(logits)) * coefficients[..., None]
        batch, time = np.indices(coefficients.shape)
        d_logits[batch, time, ids[:, 1:]] += coefficients
        return self._backward(ids[:, :-1], d_logits, tape)

    def _forward(self, ids: Ids) -> tuple[Array, list[Any]]:
        weights, tape = self.weights, []
        x = weights["tokens"][ids] + weights["positions"][: ids.shape[1]]
        for layer in range(self.shape.layers):
            normed, scale = _normalize(x)
            attended, attention = self._attend(normed, layer)
            x = x + attended @ weights[f"attention.{layer}"]
            tape += [normed, scale, attended, attention]
            normed, scale = _normalize(x)
            hidden = np.maximum(normed @ weights[f"up.{layer}"], 0.0)
            x = x + hidden @ weights[f"down.{layer}"]
            tape += [normed, scale, hidden]
        normed, scale = _normalize(x)
        tape += [normed, scale]
        return normed @ weights["output"], tape

    def _attend(self, x: Array, layer: int) -> tuple[Array, Any]:
        query, key, value = self._heads(x @ self.weights[f"qkv.{layer}"])
        time = x.shape[1]
        scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
        scores += np.triu(np.full((time, time), MASKED), 1)
        weights = np.exp(_log_softmax(scores))
        return _joined(weights @ value), (query, key, value, weights)

    def _heads(self, qkv: Array) -> Array:
        """(3, batch, heads, time, width of a head)."""
        batch, time, _ = qkv.shape
        return qkv.reshape(batch, time, 3, self.shape.heads, -1).transpose(2, 0, 3, 1, 4)

    def _backward(self, ids: Ids, d_logits: Array, tape: list[Any]) -> Weights:
        weights, found = self.weights, {}
        scale, normed = tape.pop(), tape.pop()
        found["output"] = _outer(normed, d_logits)
        dx = _normalize_backward(d_logits @ weights["output"].T, normed, scale)
        for layer in reversed(range(self.shape.layers)):
            hidden, scale, normed = tape.pop(), tape.pop(), tape.pop()
            found[f"down.{layer}"] = _outer(hidden, dx)
            d_hidden = (dx @ weights[f"down.{layer}"].T) * (hidden > 0)
            found[f"up.{layer}"] = _outer(normed, d_hidden)
            dx = dx + _normalize_backward(d_hidden @ weights[f"up.{layer}"].T, normed, scale)
            attention, attended, scale, normed = tape.pop(), tape.pop(), tape.pop(), tape.pop()
            found[f"attention.{layer}"] = _outer(attended, dx)
            d_qkv = self._attend_backward(dx @ weights[f"attention.{layer}"].T, attention)
            found[f"qkv.{layer}"] = _outer(normed, d_qkv)
            dx = dx + _normalize_backward(d_qkv @ weights[f"qkv.{layer}"].T, normed, scale)
        found["tokens"] = np.zeros_like(weights["tokens"])
        np.add.at(found["tokens"], ids, dx)
        found["positions"] = np.zeros_like(weights["positions"])
        found["positions"][: ids.shape[1]] = dx.sum(axis=0)
        return found

    def _attend_backward(self, d_attended: Array, attention: Any) -> Array:
        query, key, value, weights = attention
        batch, time, _ = d_attended.shape
        d_heads = d_attended.reshape(batch, time, self.shape.heads, -1).transpose(0, 2, 1, 3)
        d_weights = d_heads @ value.swapaxes(-1, -2)
        d_scores = weights * (d_weights - (d_weights * weights).sum(-1, keepdims=True)) / np.sqrt(query.shape[-1])
        parts = [d_scores @ key, d_scores.swapaxes(-1, -2) @ query, weights.swapaxes(-1, -2) @ d_heads]
        return np.stack(parts).transpose(1, 3, 0, 2, 4).reshape(batch, time, -1)


class Adam:
    """The optimizer. It climbs: gradients are those of something to be made larger."""

    def __init__(self, weights: Weights, *, rate: float, beta1: float = 0.9, beta2: float = 0.99) -> None:
        self.rate, self.beta1, self.beta2, self.steps = rate, beta1, beta2, 0
        self._mean = {name: np.zeros_like(value) for name, value in weights.items()}
        self._square = {name: np.zeros_like(value) for name, value in weights.items()}

    def step(self, weights: Weights, gradients: Weights, *, max_norm: float = 1.0) -> None:
        """Change the weights in place. A gradient that is longer than `max_norm` is made that long."""
        self.steps += 1
        norm = float(np.sqrt(sum((value**2).sum() for value in gradients.values())))
        clip = min(1.0, max_norm / (norm + RMS_EPSILON))
        for name, gradient in gradients.items():
            mean, square = self._mean[name], self._square[name]
            mean += (1 - self.beta1) * (clip * gradient - mean)
            square += (1 - self.beta2) * ((clip * gradient) ** 2 - square)
            unbiased_mean = mean / (1 - self.beta1**self.steps)
            unbiased_square = square / (1 - self.beta2**self.steps)
            weights[name] += self.rate * unbiased_mean / (np.sqrt(unbiased_square) + 1e-8)


def _normalize(x: Array) -> tuple[Array, Array]:
    scale = 1.0 / np.sqrt((x**2).mean(-1, keepdims=True) + RMS_EPSILON)
    return x * scale, scale


def _normalize_backward(d: Array, normed: Array, scale: Array) -> Array:
    result: Array = scale * (d - normed * (d * normed).mean(-1, keepdims=True))
    return result


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


def _joined(heads: Array) -> Array:
    batch, count, time, width = heads.shape
    return heads.transpose(0, 2, 1, 3).reshape(batch, time, count * width)


def _outer(x: Array, d: Array) -> Array:
    result: Array = x.reshape(-1, x.shape[-1]).T @ d.reshape(-1, d.shape[-1])
    return result

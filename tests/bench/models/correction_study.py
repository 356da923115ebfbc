#!/usr/bin/env python3
"""What else could correct stored KV: a table of docs/quality.md, "What a token does not know". Needs numpy.

    correction_pairs MODEL.gguf FOLDER --data musique_dev.json hotpotqa_dev.json --passages 5 --layers 3,8,13,18,23,28 --first 24
    tests/bench/models/correction_study.py FOLDER

Each row is fitted to the pairs of four questions of five and judged on those of the fifth, which share no prompt with
them. What counts is the share of the squared deviation that stays, K's and V's channels each on their own and then
averaged, pairs weighted as kvblend's own fit weighs them, mean over the layers; behind it that of each layer, and the mean
over the layers for the questions of each file. Maps are
ridge regressions about the means of the eight places in a chunk, as in engine/kv/correction_fit.h, or about those of each
place at each depth, six ranges of how many tokens stand before the chunk; some have other inputs beside a token's stored
K and V:

  tokens before     the logarithm of how many stand before the chunk, and its product with K and V; behind kvblend's own
                    map only an offset and a scale per channel that grow with it, which would cost a prompt nothing
  what is before    the mean of stored K and V of the chunks in front
  random features   the positive parts of random mixtures of K and V: what a nonlinear map of one hidden layer could add
  hidden layer      such a map of its own, trained (Adam) on what the linear map leaves, for as many passes as were best for
                    prompts that it did not see

The last row is fitted to the pairs that it is judged on: no linear map of a token's own K and V leaves less.
"""
import argparse
import json
import pathlib

import numpy as np

RANDOM_FEATURES = 1024
HIDDEN, PASSES, PATIENCE, BATCH, RATE = 256, 30, 4, 512, 1e-3


class Pairs:
    """One layer's: x as stored, d what full prefill adds to it. `about`: what pairs.json says."""

    def __init__(self, about, **values):
        self.about, self.values = about, values
        vars(self).update(values)

    def where(self, chosen):
        return Pairs(self.about, **{name: values[chosen] for name, values in self.values.items()})


class Folder:
    def __init__(self, path):
        self.path = path
        with open(path / "pairs.json", encoding="utf-8") as file:
            self.about = json.load(file)
        self.channels = self.about["channels"]
        pairs, chunks = np.array(self.about["pairs"]), np.array(self.about["chunks"])
        files, questions = np.array(self.about["prompts"]).T
        self.chunk, self.place = pairs[:, 0], pairs[:, 1]
        self.begin = chunks[self.chunk, 1]
        self.depth = np.digitize(self.begin, DEPTHS)
        self.question = questions[chunks[self.chunk, 0]]
        self.file = files[chunks[self.chunk, 0]]

    def read(self, name, *shape):
        return np.fromfile(self.path / name, dtype="<f4").reshape(-1, *shape)

    def layer(self, layer):
        x = self.read(f"{layer}.stored", self.channels)
        fresh = self.read(f"{layer}.fresh", self.channels)
        before = self.read(f"{layer}.before", self.channels)[self.chunk]
        return Pairs(self.about, x=x, d=fresh - x, weights=self.read(f"{layer}.weights"), place=self.place,
                     begin=self.begin, depth=self.depth, before=before)


# Of what are the means that a fit is about.
ALL, PLACE, PLACE_AND_DEPTH = "all", "place", "place and depth"
PAIRS_OF_OTHERS = 8
DEPTHS = [256, 512, 1024, 2048, 4096]  # where they end
SIDES = [400, 800, 1600]  # tokens before a chunk at which one map ends and another begins


class Means:
    """Weighted; those of a place at a depth as if eight pairs more had the place's own."""

    def __init__(self, pairs, values, of=PLACE):
        places, depths = pairs.about["places"], len(DEPTHS) + 1
        everything = np.average(values, axis=0, weights=pairs.weights + 1e-12)
        self.means = np.tile(everything, (places, depths, 1))
        for place in range(places) if of != ALL else ():
            at = pairs.place == place
            if pairs.weights[at].sum() == 0:
                continue
            self.means[place] = mean = np.average(values[at], axis=0, weights=pairs.weights[at])
            for depth in range(depths) if of == PLACE_AND_DEPTH else ():
                here = at & (pairs.depth == depth)
                weight = pairs.weights[here].sum()
                self.means[place, depth] = ((pairs.weights[here] @ values[here] + PAIRS_OF_OTHERS * mean)
                                            / (weight + PAIRS_OF_OTHERS))

    def of(self, pairs):
        return self.means[pairs.place, pairs.depth]


def ridge(pairs, inputs, targets):
    """[inputs, targets] of values about their means."""
    weighted = inputs * pairs.weights[:, None]
    squares, products = weighted.T @ inputs, weighted.T @ targets
    more = pairs.about["ridge"] + 2 * inputs.shape[1] / len(inputs)
    diagonal = np.diag(squares).copy()
    squares[np.diag_indices_from(squares)] += more * diagonal + 1e-6 * diagonal.mean() + 1e-12
    return np.linalg.solve(squares, products)


class Linear:
    """A ridge regression of d on features(pairs)."""

    def __init__(self, pairs, features, of=PLACE):
        self.features = features
        inputs = features(pairs)
        self.input_means, self.means = Means(pairs, inputs, of), Means(pairs, pairs.d, of)
        self.map = ridge(pairs, inputs - self.input_means.of(pairs), pairs.d - self.means.of(pairs))

    def __call__(self, pairs):
        return self.means.of(pairs) + (self.features(pairs) - self.input_means.of(pairs)) @ self.map


class Offset:
    def __init__(self, pairs, of=PLACE):
        self.means = Means(pairs, pairs.d, of)

    def __call__(self, pairs):
        return self.means.of(pairs)


class LowRank(Linear):
    """Scale, offset, and the directions in which the rest of the linear map varies most."""

    def __init__(self, pairs, rank, of=PLACE):
        super().__init__(pairs, lambda p: p.x, of)
        x = pairs.x - self.input_means.of(pairs)
        d = pairs.d - self.means.of(pairs)
        weighted = x * pairs.weights[:, None]
        variances = (weighted * x).sum(0)
        scale = np.diag((weighted * d).sum(0) / ((1 + pairs.about["ridge"] + 2 / len(x)) * variances))
        rest = self.map - scale
        values, vectors = np.linalg.eigh(weighted.T @ x)
        root = vectors * np.sqrt(np.maximum(values, 0))
        _, _, directions = np.linalg.svd(root.T @ rest, full_matrices=False)
        self.map = scale + rest @ directions[:rank].T @ directions[:rank]


class EachSide:
    """A correction of its own for chunks with fewer than so many tokens before them, and one for the others."""

    def __init__(self, pairs, tokens, fit):
        self.tokens = tokens
        self.corrections = [(side, fit(pairs.where(side(pairs)))) for side in (self.near, self.far)]

    def near(self, pairs):
        return pairs.begin < self.tokens

    def far(self, pairs):
        return pairs.begin >= self.tokens

    def __call__(self, pairs):
        corrected = np.zeros_like(pairs.d)
        for side, correction in self.corrections:
            corrected[side(pairs)] = correction(pairs.where(side(pairs)))
        return corrected


class ByTokensBefore:
    """What another correction leaves, by an offset and a scale per channel that grow with the tokens before."""

    def __init__(self, pairs, correction):
        self.correction = correction
        self.tokens = np.average(log_tokens(pairs), weights=pairs.weights[:, None])
        self.input_means = Means(pairs, pairs.x)
        left = pairs.d - correction(pairs)
        features = self.features(pairs)
        weights = pairs.weights[:, None]
        products = np.array([(weights * feature * left).sum(0) for feature in features])
        squares = np.array([[(weights * a * b).sum(0) for b in features] for a in features])
        squares[range(len(features)), range(len(features))] *= 1 + pairs.about["ridge"] + 2 / len(left)
        self.factors = np.linalg.solve(squares.transpose(2, 0, 1), products.T[:, :, None])[:, :, 0].T

    def features(self, pairs):
        tokens = log_tokens(pairs) - self.tokens
        return tokens * np.ones_like(pairs.x), tokens * (pairs.x - self.input_means.of(pairs))

    def __call__(self, pairs):
        return self.correction(pairs) + sum(factor * feature
                                            for factor, feature in zip(self.factors, self.features(pairs)))


class HiddenLayer:
    """d = linear(x) + relu(z a + b) c, z being x about its means in units of its deviations."""

    def __init__(self, pairs, questions, linear, seed=1):
        self.linear = linear
        random = np.random.default_rng(seed)
        left = pairs.d - linear(pairs)
        self.input_means = Means(pairs, pairs.x)
        z = pairs.x - self.input_means.of(pairs)
        self.scale = np.sqrt(np.average(z * z, axis=0, weights=pairs.weights)) + 1e-6
        # Both halves count alike, as they do where they are judged.
        half = pairs.d.shape[1] // 2
        power = np.average(pairs.d * pairs.d, axis=0, weights=pairs.weights)
        self.unit = np.repeat(np.sqrt([power[:half].mean(), power[half:].mean()]), half).astype(np.float32)
        z, left = (z / self.scale).astype(np.float32), (left / self.unit).astype(np.float32)
        weights = pairs.weights / pairs.weights.mean()
        unseen = questions % 5 == 3
        self.parts = [(random.standard_normal((z.shape[1], HIDDEN)) / np.sqrt(z.shape[1])).astype(np.float32),
                      np.zeros(HIDDEN, np.float32), np.zeros((HIDDEN, z.shape[1]), np.float32)]
        best, self.passes = [part.copy() for part in self.parts], 0
        least = self.loss(z[unseen], left[unseen], weights[unseen])
        first, second, step = [0, 0, 0], [0, 0, 0], 0
        seen = np.flatnonzero(~unseen)
        for epoch in range(PASSES):
            for batch in np.array_split(random.permutation(seen), max(1, len(seen) // BATCH)):
                step += 1
                gradients = self.gradients(z[batch], left[batch], weights[batch])
                for i, gradient in enumerate(gradients):
                    first[i] = 0.9 * first[i] + 0.1 * gradient
                    second[i] = 0.999 * second[i] + 0.001 * gradient ** 2
                    move = first[i] / (1 - 0.9 ** step) / (np.sqrt(second[i] / (1 - 0.999 ** step)) + 1e-8)
                    self.parts[i] -= RATE * (move + 0.01 * self.parts[i])
            loss = self.loss(z[unseen], left[unseen], weights[unseen])
            if loss < least:
                best, least, self.passes = [part.copy() for part in self.parts], loss, epoch + 1
            elif epoch + 1 - self.passes >= PATIENCE:
                break
        self.parts = best

    def added(self, z):
        return np.maximum(z @ self.parts[0] + self.parts[1], 0) @ self.parts[2]

    def loss(self, z, left, weights):
        return float((weights[:, None] * (left - self.added(z)) ** 2).mean())

    def gradients(self, z, left, weights):
        hidden = np.maximum(z @ self.parts[0] + self.parts[1], 0)
        error = (hidden @ self.parts[2] - left) * (weights[:, None] / len(z))
        back = (error @ self.parts[2].T) * (hidden > 0)
        return z.T @ back, back.sum(0), hidden.T @ error

    def __call__(self, pairs):
        z = ((pairs.x - self.input_means.of(pairs)) / self.scale).astype(np.float32)
        return self.linear(pairs) + self.added(z) * self.unit


def stays(pairs, correction):
    """Share of the squared deviation."""
    half = pairs.d.shape[1] // 2

    def power(values):
        return (pairs.weights[:, None] * values.astype(np.float64) ** 2).sum(0)

    left, whole = power(pairs.d - correction(pairs)), power(pairs.d)
    return (left[:half].sum() / whole[:half].sum() + left[half:].sum() / whole[half:].sum()) / 2


def log_tokens(pairs):
    """About 0 where 1,100 tokens stand before, so that ridge tells what goes with it from what does not."""
    return np.log(np.maximum(pairs.begin, 1))[:, None].astype(np.float32) - 7


def by_tokens_before(pairs):
    tokens = log_tokens(pairs)
    return np.hstack([pairs.x, tokens, pairs.x * tokens])


def random_features(channels, scale):
    random = np.random.default_rng(1)
    mix = (random.standard_normal((channels, RANDOM_FEATURES)) / np.sqrt(channels)).astype(np.float32)
    shift = random.standard_normal(RANDOM_FEATURES).astype(np.float32)
    return lambda pairs: np.hstack([pairs.x, np.maximum(pairs.x / scale @ mix + shift, 0)])


def rows(fitted, judged, questions):
    """Name and correction, one after the other: only what is asked for is fitted."""
    def own(pairs):
        return pairs.x

    linear = Linear(fitted, own)
    scale = fitted.x.std(0) + 1e-6
    yield "offset", Offset(fitted, of=ALL)
    yield "offset of each place in the chunk", Offset(fitted)
    yield "offset of each place at each depth", Offset(fitted, of=PLACE_AND_DEPTH)
    yield "scale, and offset of each place", LowRank(fitted, 0)
    rank = fitted.about["rank"]
    kvblends = LowRank(fitted, rank)
    yield f"and {rank} directions (kvblend)", kvblends
    yield f"{rank} directions, offset of each place at each depth", LowRank(fitted, rank, of=PLACE_AND_DEPTH)
    for tokens in SIDES:
        if not fitted.begin.min() < tokens <= fitted.begin.max():
            continue  # one side has no pairs
        yield (f"{rank} directions, a map for each side of {tokens} tokens before",
               EachSide(fitted, tokens, lambda pairs: LowRank(pairs, rank)))
    yield "kvblend's, scale and offset by tokens before", ByTokensBefore(fitted, kvblends)
    yield "linear map, one offset for all places", Linear(fitted, own, of=ALL)
    yield "linear map, offset of each place", linear
    yield "linear map, offset of each place at each depth", Linear(fitted, own, of=PLACE_AND_DEPTH)
    yield "linear map, and tokens before", Linear(fitted, by_tokens_before)
    yield "linear map, and what is before", Linear(fitted, lambda pairs: np.hstack([pairs.x, pairs.before]))
    yield "linear map, and random features", Linear(fitted, random_features(fitted.x.shape[1], scale))
    yield "linear map, and a hidden layer", HiddenLayer(fitted, questions, linear)
    yield "linear map fitted to the pairs judged on", Linear(judged, own)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="what correction_pairs wrote")
    options = parser.parse_args()
    folder = Folder(options.folder)
    is_judged = folder.question % 5 == 4
    if is_judged.all() or not is_judged.any():
        parser.error("the pairs are of too few questions: one of five is kept back")
    table, by_file, passes = {}, {}, []
    files = np.unique(folder.file[is_judged])
    for layer in folder.about["layers"]:
        pairs = folder.layer(layer)
        for name, correction in rows(pairs.where(~is_judged), pairs.where(is_judged), folder.question[~is_judged]):
            table.setdefault(name, []).append(stays(pairs.where(is_judged), correction))
            by_file.setdefault(name, []).append(
                [stays(pairs.where(is_judged & (folder.file == file)), correction) for file in files])
            if isinstance(correction, HiddenLayer):
                passes.append(correction.passes)
    print(f"{(~is_judged).sum()} pairs fitted, {is_judged.sum()} judged\n")
    columns = [f"layer {layer}" for layer in folder.about["layers"]] + [f"file {file + 1}" for file in files]
    print("| | stays | " + " | ".join(columns) + " |")
    print("|---|--:|" + "--:|" * len(columns))
    for name, shares in table.items():
        row = [np.mean(shares), *shares, *np.mean(by_file[name], axis=0)]
        print(f"| {name} | " + " | ".join(f"{share:.1%}" for share in row) + " |")
    print(f"\nPasses of the hidden layers that were best: {', '.join(map(str, passes))}")


if __name__ == "__main__":
    main()

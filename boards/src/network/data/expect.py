#!/usr/bin/env python3
"""Write the scores that the network must produce, next to this file.

This is the second, independent implementation that the firmware is compared with; run it after a change of the
network:  ./expect.py
"""
from pathlib import Path


def numbers(seed, count):
    """The generator's numbers, from -64 to 63."""
    values = []
    for _ in range(count):
        seed = (seed * 1664525 + 1013904223) % 2**32
        values.append((seed >> 25) - 64)
    return values


def quantise(total, shift):
    return max(-128, min(127, total >> shift))


def image(values, height, width, channels):
    """Pixels by row and column, each a list of channels."""
    cut = [values[i : i + channels] for i in range(0, len(values), channels)]
    return [cut[y * width : (y + 1) * width] for y in range(height)]


def neighbourhood(pixels, y, x, channel):
    """The 3 x 3 values around a pixel, zero outside."""
    return [
        pixels[v][u][channel] if 0 <= v < len(pixels) and 0 <= u < len(pixels[0]) else 0
        for v in (y - 1, y, y + 1)
        for u in (x - 1, x, x + 1)
    ]


def convolve(pixels, stride, weights, outputs, shift):
    channels = len(pixels[0][0])

    def value(y, x, o):
        total = 0
        for c in range(channels):
            for k, v in enumerate(neighbourhood(pixels, y, x, c)):
                total += v * weights[(o * 9 + k) * channels + c]
        return max(0, quantise(total, shift))

    rows, columns = range(0, len(pixels), stride), range(0, len(pixels[0]), stride)
    return [[[value(y, x, o) for o in range(outputs)] for x in columns] for y in rows]


def depthwise(pixels, weights, shift):
    def value(y, x, c):
        total = sum(v * weights[c * 9 + k] for k, v in enumerate(neighbourhood(pixels, y, x, c)))
        return max(0, quantise(total, shift))

    channels = range(len(pixels[0][0]))
    return [[[value(y, x, c) for c in channels] for x in range(len(pixels[0]))] for y in range(len(pixels))]


def pointwise(pixels, weights, outputs, shift):
    channels = len(pixels[0][0])

    def value(pixel, o):
        return max(0, quantise(sum(v * weights[o * channels + c] for c, v in enumerate(pixel)), shift))

    return [[[value(pixel, o) for o in range(outputs)] for pixel in row] for row in pixels]


def pool(pixels):
    def value(y, x, c):
        return max(pixels[y + v][x + u][c] for v in (0, 1) for u in (0, 1))

    channels = range(len(pixels[0][0]))
    rows, columns = range(0, len(pixels), 2), range(0, len(pixels[0]), 2)
    return [[[value(y, x, c) for c in channels] for x in columns] for y in rows]


def add(a, b):
    return [
        [[max(-128, min(127, v + w)) for v, w in zip(p, q)] for p, q in zip(r, s)] for r, s in zip(a, b)
    ]


x = image(numbers(1, 32 * 32), 32, 32, 1)
x = convolve(x, 2, numbers(2, 8 * 9), 8, 5)
x = depthwise(x, numbers(3, 8 * 9), 5)
x = pointwise(x, numbers(4, 16 * 8), 16, 5)
x = pool(x)
x = add(convolve(x, 1, numbers(5, 16 * 9 * 16), 16, 8), x)
mean = [sum(pixel[c] for row in x for pixel in row) >> 6 for c in range(16)]
weights = numbers(6, 10 * 16)
scores = [sum(v * weights[o * 16 + c] for c, v in enumerate(mean)) for o in range(10)]
Path(__file__).with_name("scores.txt").write_text(f"{scores}\n")

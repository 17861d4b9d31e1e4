#!/usr/bin/env python3
"""Write the report that the demo must produce for a document, next to it.

This is the second, independent implementation that the firmware is compared with:
run it after editing a document:  ./expect.py inventory.json inventory-small.json
"""
import json
import sys


def leaves(value):
    """The scalar values below `value`: how many, and the sum of the numbers among them."""
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, list):
        count, total = 0, 0.0
        for item in value:
            n, t = leaves(item)
            count, total = count + n, total + t
        return count, total
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return 1, float(value) if number else 0.0


def mean(device):
    total = 0.0
    for reading in device["readings"]:
        total += reading
    calibration = device["calibration"]
    return total / len(device["readings"]) * calibration["gain"] + calibration["offset"]


def report(document):
    site, devices = document["site"], document["devices"]
    yield f"{site['name']} since {site['commissioned']} at {site['latitude']:.4f}, {site['longitude']:.4f}"
    for contact in site["contacts"]:
        yield f"contact {contact['name']}: {contact['phone']}"
    yield f"schema {document['schema']}, {len(devices)} devices"
    kinds = {}
    for d in sorted(devices, key=lambda d: (d["kind"], -mean(d), d["id"])):
        place = d["location"]
        line = f"{d['id']} {d['firmware']} bay {place['bay']} {place['room']}/{place['shelf'] or '-'}"
        line += f": {mean(d):.3f} {d['unit']} in {min(d['readings']):.2f}..{max(d['readings']):.2f}"
        if d["battery"]:
            line += f", {d['battery']['millivolts']} mV {d['battery']['percent']:.1f} %"
        count, total = leaves(d["attributes"])
        line += f", {count} attributes {total:.2f}"
        for tag in d["tags"]:
            line += f" #{tag}"
        yield line
        if place["note"]:
            yield "  " + place["note"].replace("\n", " | ").replace("\t", " ")
        n, t = kinds.get(d["kind"], (0, 0.0))
        kinds[d["kind"]] = n + 1, t + mean(d)
    for kind in sorted(kinds):
        n, t = kinds[kind]
        yield f"{kind}: {n} of them, {t / n:.3f}"


for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        text = "".join(line + "\n" for line in report(json.load(file)))
    with open(path.removesuffix(".json") + ".report.txt", "w", encoding="utf-8") as file:
        file.write(text)

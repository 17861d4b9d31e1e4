//! The report: the same text, byte for byte, as `data/expect.py` writes.

use alloc::{collections::BTreeMap, string::String};
use core::fmt::{self, Write};

use serde_json::Value;

use crate::inventory::{Device, Site};

pub(crate) fn write(schema: u32, site: &Site, devices: &[&Device]) -> String {
    let mut text = String::new();
    try_write(&mut text, schema, site, devices).expect("writing to a String does not fail");
    text
}

fn try_write(out: &mut String, schema: u32, site: &Site, devices: &[&Device]) -> fmt::Result {
    writeln!(
        out,
        "{} since {} at {:.4}, {:.4}",
        site.name, site.commissioned, site.latitude, site.longitude
    )?;
    for contact in &site.contacts {
        writeln!(out, "contact {}: {}", contact.name, contact.phone)?;
    }
    writeln!(out, "schema {schema}, {} devices", devices.len())?;

    let mut kinds: BTreeMap<&str, (u32, f64)> = BTreeMap::new();
    for device in devices {
        write_device(out, device)?;
        let (count, total) = kinds.entry(&device.kind).or_default();
        *count += 1;
        *total += device.calibrated_mean();
    }
    for (kind, (count, total)) in kinds {
        writeln!(out, "{kind}: {count} of them, {:.3}", total / f64::from(count))?;
    }
    Ok(())
}

fn write_device(out: &mut String, device: &Device) -> fmt::Result {
    let place = &device.location;
    let shelf = place.shelf.as_deref().unwrap_or("-");
    write!(out, "{} {} bay {} {}/{shelf}", device.id, device.firmware, place.bay, place.room)?;

    let lowest = device.readings.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = device.readings.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    write!(out, ": {:.3} {} in {lowest:.2}..{highest:.2}", device.calibrated_mean(), device.unit)?;
    if let Some(battery) = &device.battery {
        write!(out, ", {} mV {:.1} %", battery.millivolts, battery.percent)?;
    }
    let (count, total) = leaves(device.attributes.values());
    write!(out, ", {count} attributes {total:.2}")?;
    for tag in &device.tags {
        write!(out, " #{tag}")?;
    }
    out.push('\n');
    if let Some(note) = &place.note {
        writeln!(out, "  {}", note.replace('\n', " | ").replace('\t', " "))?;
    }
    Ok(())
}

/// Counts the scalar values below `values`, and sums the numbers among them.
fn leaves<'a>(values: impl IntoIterator<Item = &'a Value>) -> (u32, f64) {
    values.into_iter().fold((0, 0.0), |(count, total), value| {
        let (n, t) = match value {
            Value::Array(items) => leaves(items),
            Value::Object(members) => leaves(members.values()),
            scalar => (1, scalar.as_f64().unwrap_or(0.0)),
        };
        (count + n, total + t)
    })
}

/// Returns the first line, from 1, in which the texts differ.
pub(crate) fn first_difference(actual: &str, expected: &str) -> Option<usize> {
    if actual == expected {
        return None;
    }
    let same = actual.lines().zip(expected.lines()).take_while(|(a, e)| a == e).count();
    Some(same + 1)
}

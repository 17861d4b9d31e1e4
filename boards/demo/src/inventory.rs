//! The document: the structure of a site inventory.

use alloc::{collections::BTreeMap, string::String, vec::Vec};

use serde::Deserialize;
use serde_json::Value;

use crate::Failure;

#[derive(Deserialize)]
pub(crate) struct Inventory {
    pub schema: u32,
    pub site: Site,
    pub devices: Vec<Device>,
}

#[derive(Deserialize)]
pub(crate) struct Site {
    pub name: String,
    pub latitude: f64,
    pub longitude: f64,
    pub commissioned: String,
    pub contacts: Vec<Contact>,
}

#[derive(Deserialize)]
pub(crate) struct Contact {
    pub name: String,
    pub phone: String,
}

#[derive(Deserialize)]
pub(crate) struct Device {
    pub id: String,
    pub kind: String,
    pub location: Location,
    pub firmware: String,
    pub battery: Option<Battery>,
    pub unit: String,
    pub calibration: Calibration,
    pub readings: Vec<f64>,
    pub tags: Vec<String>,
    /// Each kind of device has different attributes, so they stay a tree.
    pub attributes: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
pub(crate) struct Location {
    pub bay: u8,
    pub room: String,
    pub shelf: Option<String>,
    pub note: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct Battery {
    pub millivolts: u16,
    pub percent: f64,
}

#[derive(Deserialize)]
pub(crate) struct Calibration {
    pub offset: f64,
    pub gain: f64,
}

impl Device {
    pub fn calibrated_mean(&self) -> f64 {
        let total: f64 = self.readings.iter().sum();
        total / self.readings.len() as f64 * self.calibration.gain + self.calibration.offset
    }
}

pub(crate) fn parse(document: &str) -> Result<Inventory, Failure> {
    serde_json::from_str(document)
        .map_err(|error| Failure::Parse { line: error.line(), column: error.column() })
}

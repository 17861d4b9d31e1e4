//! `tables`: draws the tables of what was measured, from the files in benches/results.

use std::path::Path;
use std::process::ExitCode;
use std::{fs, io};

use allotment_common::page;
use anyhow::Result;

use crate::{bench, firmware, measure, pages, wcet};

/// Draws one set of tables; lists all names if there is no `name`.
pub fn run(name: Option<&str>) -> Result<ExitCode> {
    let results = firmware::root().join("benches/results");
    let drawn = match name {
        None => {
            print!("{}", list(&results)?);
            return bench::tables(None);
        }
        Some("mcu") => measure::draw(&results.join("mcu.csv"))?,
        Some("wcet") => wcet::draw()?,
        Some(name) => match pages::find(name) {
            Some(file) => page::to_markdown(&fs::read_to_string(file)?),
            None => return bench::tables(Some(name)),
        },
    };
    print!("{drawn}");
    Ok(ExitCode::SUCCESS)
}

fn list(results: &Path) -> io::Result<String> {
    let mut lines = vec![
        "  mcu              Firmware: code, memory and exact instruction counts".to_owned(),
        "  wcet             Worst-case instructions of the constant-time placements".to_owned(),
    ];
    for folder in pages::FOLDERS {
        for entry in fs::read_dir(results.join(folder))? {
            let file = entry?.path();
            let name = file.file_stem().and_then(|name| name.to_str());
            let (Some(name), true) = (name, file.extension().is_some_and(|ending| ending == "csv")) else {
                continue;
            };
            let text = fs::read_to_string(&file)?;
            lines.push(format!("  {name:16} {}", page::title(&text)));
        }
    }
    lines.sort();
    Ok(format!("Pages:\n{}\n\n", lines.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_found_and_have_titles() {
        let results = firmware::root().join("benches/results");
        assert!(pages::find("malloc").is_some() && pages::find("fit").is_some());
        assert!(pages::find("nothing").is_none());
        let list = list(&results).unwrap();
        assert!(
            list.lines().any(|line| line.contains("malloc") && line.contains("whole programs")),
            "{list}"
        );
    }

    #[test]
    fn every_table_of_firmware_can_be_drawn() {
        let mcu = measure::draw(&firmware::root().join("benches/results/mcu.csv")).unwrap();
        assert!(mcu.contains("| heap "), "{mcu}");
        assert!(wcet::draw().unwrap().contains("| tiny "));
    }
}

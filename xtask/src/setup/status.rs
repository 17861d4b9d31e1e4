//! The list of installed packages that dpkg keeps, edited so that nothing installed stands in the way.

/// Relations of an installed package: what it needs, and what it cannot live with.
///
/// Left out, an installed package neither forbids a new one nor misses a package that is left out of the list.
const RELATIONS: [&str; 8] =
    ["Depends", "Pre-Depends", "Recommends", "Suggests", "Enhances", "Breaks", "Conflicts", "Replaces"];

/// The text of a list of installed packages without the packages named in `names`.
pub fn without(text: &str, names: &[String]) -> String {
    let mut rest = String::with_capacity(text.len());
    for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
        let package = field(paragraph, "Package").unwrap_or_default();
        if names.iter().all(|name| name != package) {
            rest.push_str(paragraph.trim_end_matches('\n'));
            rest.push_str("\n\n");
        }
    }
    rest
}

/// Removes a package like [`without`], and also the relations of all others.
///
/// Time is linear in the text times the number of packages to leave out.
pub fn edited(text: &str, names: &[String]) -> String {
    let text = without(text, names);
    let mut edited = String::with_capacity(text.len());
    for paragraph in text.split_terminator("\n\n") {
        let mut skipping = false;
        for line in paragraph.lines().filter(|line| !line.is_empty()) {
            // A line that begins with a space belongs to the field before it.
            if !line.starts_with([' ', '\t']) {
                let name = line.split(':').next().unwrap_or_default();
                skipping = RELATIONS.iter().any(|relation| relation.eq_ignore_ascii_case(name));
            }
            if !skipping {
                edited.push_str(line);
                edited.push('\n');
            }
        }
        edited.push('\n');
    }
    edited
}

fn field<'t>(paragraph: &'t str, name: &str) -> Option<&'t str> {
    let value = |line: &'t str| line.strip_prefix(name)?.strip_prefix(':');
    paragraph.lines().find_map(value).map(str::trim)
}

/// The actions that apt would take.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Packages to download and unpack.
    pub install: Vec<String>,
    /// Installed packages that would have to go.
    pub remove: Vec<String>,
}

impl Plan {
    /// Reads the output of `apt-get --simulate install`.
    pub fn parse(output: &str) -> Self {
        let mut plan = Self::default();
        for line in output.lines() {
            let mut words = line.split(' ');
            let list = match words.next() {
                Some("Inst") => &mut plan.install,
                Some("Remv" | "Purg") => &mut plan.remove,
                _ => continue,
            };
            // `name:arch` for another architecture than the machine's.
            list.extend(words.next().and_then(|name| name.split(':').next()).map(str::to_owned));
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "\
Package: qemu-utils
Status: install ok installed
Source: qemu
Version: 1:10.0
Depends: libaio1 (>= 0.3),
 libc6 (>= 2.34)
Breaks: qemu-system-common (<< 1:8.0)
Description: tools
 Depends: this line describes

Package: tool
Status: install ok installed
Version: 1
Pre-Depends: qemu-utils
Provides: a-tool

";

    #[test]
    fn relations_go_and_the_rest_stays() {
        let expected = "\
Package: qemu-utils
Status: install ok installed
Source: qemu
Version: 1:10.0
Description: tools
 Depends: this line describes

Package: tool
Status: install ok installed
Version: 1
Provides: a-tool

";
        assert_eq!(edited(STATUS, &[]), expected);
        assert_eq!(edited(expected, &[]), expected);
    }

    #[test]
    fn packages_are_left_out_by_their_whole_name() {
        let without =
            |names: &[&str]| edited(STATUS, &names.iter().map(|&name| name.into()).collect::<Vec<_>>());
        assert!(!without(&["qemu-utils"]).contains("qemu-utils"));
        assert!(without(&["qemu-utils"]).contains("Package: tool\n"));
        assert_eq!(without(&["qemu", "util", "tool2"]), edited(STATUS, &[]));
        assert_eq!(without(&["qemu-utils", "tool"]), "");
    }

    #[test]
    fn a_plan_is_read() {
        let output = "NOTE: This is only a simulation!\nReading package lists...\n\
            Remv qemu-utils [1:10.0]\nInst libfdt1 (1.6 Debian:12 [amd64])\n\
            Inst libx:i386 [1] (2 Debian:12 [i386]) []\nConf libfdt1 (1.6 Debian:12 [amd64])\n";
        let plan = Plan::parse(output);
        assert_eq!(plan.install, ["libfdt1", "libx"]);
        assert_eq!(plan.remove, ["qemu-utils"]);
        assert_eq!(Plan::parse("E: Unable to locate package x\n"), Plan::default());
    }
}

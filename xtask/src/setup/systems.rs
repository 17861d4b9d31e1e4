//! Instructions for the user of each system to install a program.

/// Package managers by the program that tells them, the command that installs, and their packages for QEMU's emulators of
/// Arm, RISC-V and x86-64, and for Node.
const MANAGERS: [(&str, &str, [&str; 4]); 6] = [
    ("apt-get", "sudo apt-get install", ["qemu-system-arm", "qemu-system-misc", "qemu-system-x86", "nodejs"]),
    (
        "dnf",
        "sudo dnf install",
        ["qemu-system-arm-core", "qemu-system-riscv-core", "qemu-system-x86-core", "nodejs"],
    ),
    ("pacman", "sudo pacman -S", ["qemu-system-arm", "qemu-system-riscv", "qemu-system-x86", "nodejs"]),
    ("zypper", "sudo zypper install", ["qemu-arm", "qemu-extra", "qemu-x86", "nodejs-default"]),
    ("apk", "sudo apk add", ["qemu-system-arm", "qemu-system-riscv32", "qemu-system-x86_64", "nodejs"]),
    ("brew", "brew install", ["qemu", "qemu", "qemu", "node"]),
];

/// The one command that installs a program on this system, as half a sentence.
pub fn advice(program: &str) -> String {
    // Homebrew last: on Linux it stands beside the system's own.
    let here = MANAGERS.iter().map(|(name, ..)| *name).find(|name| which::which(name).is_ok());
    advice_for(program, here)
}

fn advice_for(program: &str, manager: Option<&str>) -> String {
    let columns = ["qemu-system-arm", "qemu-system-riscv32", "qemu-system-x86_64", "node"];
    let column = columns.iter().position(|name| *name == program);
    match MANAGERS.iter().find(|(name, ..)| Some(*name) == manager) {
        Some((_, install, packages)) => {
            // The other programs have one name everywhere.
            let package = column.map_or(program, |column| packages[column]);
            format!("`{install} {package}` installs it")
        }
        None => {
            let home = match column {
                Some(0..=2) => " (https://www.qemu.org/download)",
                Some(_) => " (https://nodejs.org/en/download)",
                None => "",
            };
            format!("install it{home} and put it on `PATH`")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::advice_for;

    #[test]
    fn each_system_has_its_command() {
        let arm = |manager| advice_for("qemu-system-arm", manager);
        assert_eq!(arm(Some("apt-get")), "`sudo apt-get install qemu-system-arm` installs it");
        assert_eq!(arm(Some("dnf")), "`sudo dnf install qemu-system-arm-core` installs it");
        assert_eq!(arm(Some("pacman")), "`sudo pacman -S qemu-system-arm` installs it");
        assert_eq!(arm(Some("brew")), "`brew install qemu` installs it");
        assert_eq!(arm(None), "install it (https://www.qemu.org/download) and put it on `PATH`");
        let riscv = advice_for("qemu-system-riscv32", Some("zypper"));
        assert_eq!(riscv, "`sudo zypper install qemu-extra` installs it");
        let x86 = advice_for("qemu-system-x86_64", Some("apt-get"));
        assert_eq!(x86, "`sudo apt-get install qemu-system-x86` installs it");
        assert_eq!(
            advice_for("node", None),
            "install it (https://nodejs.org/en/download) and put it on `PATH`"
        );
        assert_eq!(advice_for("jq", Some("apk")), "`sudo apk add jq` installs it");
    }
}

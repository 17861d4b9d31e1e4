//! The boards, as `boards.toml` describes them.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};

/// The text of `boards.toml` when this crate was built.
const EMBEDDED: &str = include_str!("../boards.toml");

/// All boards, in the order of the file.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Boards {
    /// Name of the board that is run when none is named.
    pub default: String,
    /// The boards.
    #[serde(rename = "board")]
    pub all: Vec<Board>,
}

/// One board: a program in a package of the workspace in `boards/`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Board {
    /// Name of the board, and of its program.
    pub name: String,
    /// The package that has the program: `boards` itself if the file does not say.
    #[serde(default = "shared")]
    pub package: String,
    /// What it is, in a few words.
    pub title: String,
    /// Processor core.
    pub core: String,
    /// Target triple to compile for.
    pub target: String,
    /// Memory that holds code and constants.
    pub flash: Bytes,
    /// Memory that holds variables, heap and stack.
    pub ram: Bytes,
    /// What runs it.
    pub runner: Runner,
    /// Cargo features to build it with.
    #[serde(default)]
    pub features: Vec<String>,
    /// Anything a user should know.
    #[serde(default)]
    pub notes: String,
}

fn shared() -> String {
    "boards".into()
}

/// What runs a board's firmware.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Runner {
    /// The emulator QEMU.
    Qemu {
        /// Emulated system: the binary is `qemu-system-` and this.
        system: String,
        /// Machine name.
        machine: String,
        /// Further arguments.
        #[serde(default)]
        args: Vec<String>,
    },
    /// Node, with this script from the package's folder and the WebAssembly module as its argument.
    Node {
        /// File name of the script.
        script: String,
    },
    /// Only the real board runs it; here it is linked.
    LinkOnly {},
}

impl fmt::Display for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Qemu { .. } => "QEMU",
            Self::Node { .. } => "Node",
            Self::LinkOnly {} => "links only",
        })
    }
}

/// A number of bytes; in the file a number, or a text such as `"16K"` or `"4M"` (powers of 1024).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            n if n >= 1 << 20 && n % (1 << 20) == 0 => format!("{} MiB", n >> 20),
            n if n >= 1 << 10 && n % (1 << 10) == 0 => format!("{} KiB", n >> 10),
            n => format!("{n} B"),
        };
        f.pad(&text)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(bytes) => Ok(Self(bytes)),
            Written::Text(text) => parse_bytes(&text).ok_or_else(|| {
                de::Error::custom(format!("{text:?} is no size: write 512, \"16K\" or \"4M\""))
            }),
        }
    }
}

fn parse_bytes(text: &str) -> Option<Bytes> {
    let (digits, shift) = match text.strip_suffix(['K', 'M']) {
        Some(digits) if text.ends_with('K') => (digits, 10),
        Some(digits) => (digits, 20),
        None => (text, 0),
    };
    let number: u64 = digits.parse().ok()?;
    number.checked_mul(1 << shift).map(Bytes)
}

/// Why a list of boards was refused.
#[derive(Debug, thiserror::Error)]
pub enum BoardsError {
    /// The file is no TOML, or has other fields than a board has.
    #[error("the list of boards is not understood: {0}")]
    Syntax(#[from] toml::de::Error),
    /// Two boards have one name.
    #[error("board `{0}` is listed twice: give one of them another name")]
    Duplicate(String),
    /// The default board is not in the list.
    #[error("the default board `{0}` is not in the list")]
    NoDefault(String),
    /// A memory of no size.
    #[error("board `{0}` has a memory of no size: set `flash` and `ram`")]
    NoMemory(String),
}

/// A name that no board has.
#[derive(Debug, thiserror::Error)]
#[error("there is no board `{name}`; there are {known}")]
pub struct UnknownBoard {
    name: String,
    known: String,
}

impl Boards {
    /// The boards of the tree that this crate was built from.
    pub fn embedded() -> Self {
        Self::parse(EMBEDDED).expect("the unit tests parse the same text")
    }

    /// Reads a list of boards.
    ///
    /// # Errors
    /// [`BoardsError`] if the text is not such a list.
    pub fn parse(text: &str) -> Result<Self, BoardsError> {
        let boards: Self = toml::from_str(text)?;
        for (n, board) in boards.iter().enumerate() {
            if boards.iter().take(n).any(|other| other.name == board.name) {
                return Err(BoardsError::Duplicate(board.name.clone()));
            }
            if board.flash.0 == 0 || board.ram.0 == 0 {
                return Err(BoardsError::NoMemory(board.name.clone()));
            }
        }
        match boards.get(&boards.default) {
            Ok(_) => Ok(boards),
            Err(_) => Err(BoardsError::NoDefault(boards.default)),
        }
    }

    /// The boards in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Board> {
        self.all.iter()
    }

    /// The board of this name.
    ///
    /// # Errors
    /// [`UnknownBoard`], which names all that there are.
    pub fn get(&self, name: &str) -> Result<&Board, UnknownBoard> {
        self.iter().find(|board| board.name == name).ok_or_else(|| UnknownBoard {
            name: name.into(),
            known: self.iter().map(|board| board.name.as_str()).collect::<Vec<_>>().join(", "),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    const ONE: &str = r#"
        default = "a"
        [[board]]
        name = "a"
        title = "A board"
        core = "Cortex-M0"
        target = "thumbv6m-none-eabi"
        flash = "256K"
        ram = 16384
        runner = { kind = "qemu", system = "arm", machine = "microbit" }
    "#;

    #[test]
    fn a_board_is_read() {
        let boards = Boards::parse(ONE).unwrap();
        let board = boards.get("a").unwrap();
        assert_eq!((board.flash, board.ram), (Bytes(256 << 10), Bytes(16 << 10)));
        assert!(matches!(&board.runner, Runner::Qemu { machine, .. } if machine == "microbit"));
    }

    #[test]
    fn mistakes_are_refused() {
        let error = |from, to| Boards::parse(&ONE.replacen(from, to, 1)).unwrap_err();
        assert!(matches!(error("\"256K\"", "\"256 KB\""), BoardsError::Syntax(_)));
        assert!(matches!(error("title", "tittle"), BoardsError::Syntax(_)));
        assert!(matches!(error("16384", "0"), BoardsError::NoMemory(_)));
        assert!(matches!(error("default = \"a\"", "default = \"b\""), BoardsError::NoDefault(_)));
        let second = &ONE[ONE.find("[[board]]").unwrap()..];
        let twice = Boards::parse(&format!("{ONE}{second}")).unwrap_err();
        assert!(matches!(twice, BoardsError::Duplicate(name) if name == "a"));
    }

    #[test]
    fn an_unknown_board_is_answered_with_the_known_ones() {
        let error = Boards::parse(ONE).unwrap().get("b").unwrap_err();
        assert_eq!(error.to_string(), "there is no board `b`; there are a");
    }

    #[test]
    fn sizes_are_read_and_written() {
        let sizes = [("512", "512 B"), ("1536", "1536 B"), ("16K", "16 KiB"), ("4M", "4 MiB")];
        for (text, shown) in sizes {
            assert_eq!(parse_bytes(text).unwrap().to_string(), shown);
        }
        for wrong in ["", "K", "-1", "4 M", "4m", "18446744073709551615K"] {
            assert_eq!(parse_bytes(wrong), None, "{wrong:?}");
        }
    }

    /// Every program of the packages is a board, and the other way about. A module for Node is a library.
    #[test]
    fn the_list_and_the_programs_agree() {
        #[derive(Deserialize)]
        struct Manifest {
            #[serde(default)]
            bin: Vec<Program>,
        }
        #[derive(Deserialize)]
        struct Program {
            name: String,
            #[serde(default, rename = "required-features")]
            features: Vec<String>,
        }
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../boards");
        let boards = Boards::embedded();
        for package in ["boards", "hardware"] {
            let manifest = folder.join(if package == "boards" { "" } else { package }).join("Cargo.toml");
            let manifest: Manifest = toml::from_str(&std::fs::read_to_string(manifest).unwrap()).unwrap();
            let programs = manifest.bin.into_iter().filter(|program| program.name != "plain-value");
            let programs: BTreeSet<_> = programs.map(|program| (program.name, program.features)).collect();
            let listed = boards.iter().filter(|board| board.package == package);
            let listed = listed.map(|board| (board.name.clone(), board.features.clone())).collect();
            assert_eq!(programs, listed, "{package}");
        }
        for board in boards.iter().filter(|board| !["boards", "hardware"].contains(&board.package.as_str())) {
            assert!(folder.join(&board.package).join("Cargo.toml").is_file(), "{}", board.name);
        }
    }

    #[test]
    fn targets_runners_and_sizes_make_sense() {
        let known = [
            "thumbv6m-none-eabi",
            "thumbv7m-none-eabi",
            "thumbv7em-none-eabihf",
            "thumbv8m.main-none-eabihf",
            "riscv32imc-unknown-none-elf",
            "riscv32imac-unknown-none-elf",
            "wasm32-unknown-unknown",
        ];
        for board in Boards::embedded().iter() {
            assert!(known.contains(&board.target.as_str()), "{}: {}", board.name, board.target);
            assert!(board.ram >= Bytes(16 << 10), "{}", board.name);
            let system = if board.target.starts_with("thumb") { "arm" } else { "riscv32" };
            match &board.runner {
                Runner::Qemu { system: given, .. } => assert_eq!(given, system, "{}", board.name),
                Runner::Node { .. } => assert_eq!(board.target, "wasm32-unknown-unknown"),
                Runner::LinkOnly {} => {}
            }
        }
    }
}

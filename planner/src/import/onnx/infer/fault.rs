//! Errors of a node.

/// Why the outputs of a node are not known.
#[derive(Debug)]
pub enum Fault {
    /// The node does not fit its inputs.
    Wrong(String),
    /// Its shapes depend on values that are known only in a run.
    Unknown(String),
}

impl From<String> for Fault {
    fn from(what: String) -> Self {
        Self::Wrong(what)
    }
}

impl From<&str> for Fault {
    fn from(what: &str) -> Self {
        Self::Wrong(what.into())
    }
}

/// Returns the error from `what` if `wrong` is true.
pub fn refuse_if<F: Into<Fault>>(wrong: bool, what: impl FnOnce() -> F) -> Result<(), Fault> {
    if wrong { Err(what().into()) } else { Ok(()) }
}

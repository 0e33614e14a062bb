//! Where the examples run: on the server whose address is given, else on an engine in the process.

use rockdove::{Bus, BusBuilder, Embedded};

/// A place to open buses on.
pub enum Place {
    Server(String),
    Here(Embedded),
}

impl Place {
    /// The place named by the first argument.
    pub fn from_args() -> Result<Self, Box<dyn std::error::Error>> {
        Ok(match std::env::args().nth(1) {
            Some(uri) => Self::Server(uri),
            None => Self::Here(Embedded::memory()?),
        })
    }

    /// Prepares a node.
    pub fn bus(&self, id: &str) -> BusBuilder {
        match self {
            Self::Server(uri) => Bus::builder(uri).sender_id(id),
            Self::Here(store) => store.bus().sender_id(id),
        }
    }
}

//! What is measured: a server, or the engine in this process.

use super::meter::{Meter, Metered};
use super::plan::Plan;
use super::relay::Relay;
use anyhow::{Context, Result, bail};
use rockdove::{Bus, BusBuilder, Embedded, Layout, Settings};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Database of the load, on every server.
const DATABASE: &str = "rockdove_bench";
/// What stands for the engine in this process instead of a connection string.
const EMBEDDED: &str = "embedded";

/// Where the load goes: `NAME=ADDRESS` or `ADDRESS`, which is a connection string, `embedded` (in memory) or
/// `embedded:DIRECTORY`.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Its name in the results.
    pub name: String,
    /// Its address.
    pub address: String,
    /// Whether a relay completes what the server leaves out, see [`Relay`].
    pub relayed: bool,
}

/// Why a target could not be read.
#[derive(Debug, Error, PartialEq)]
#[error("a target is [NAME=]mongodb://…, [NAME=]embedded or [NAME=]embedded:DIRECTORY")]
pub struct TargetError;

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Target, TargetError> {
        let is_address = |text: &str| {
            text.starts_with("mongodb://")
                || text.starts_with("mongodb+srv://")
                || text.split(':').next() == Some(EMBEDDED)
        };
        let (name, address) = match text.split_once('=') {
            Some((name, address)) if !name.is_empty() && !is_address(text) => (name, address),
            _ => (text, text),
        };
        let target = Target { name: name.into(), address: address.into(), relayed: false };
        is_address(address).then_some(target).ok_or(TargetError)
    }
}

/// A target that can be reached.
pub struct Reached {
    way: Way,
}

enum Way {
    Server { uri: String, _relay: Option<Relay> },
    Embedded(Embedded, Arc<Meter>),
}

impl Target {
    /// Prepares the way to the target.
    pub async fn reach(&self) -> Result<Reached> {
        let way = match self.address.strip_prefix(EMBEDDED) {
            Some("") => Way::Embedded(Embedded::memory()?, Arc::default()),
            Some(dir) => Way::Embedded(Embedded::open(dir.trim_start_matches(':'))?, Arc::default()),
            None if self.relayed => {
                let relay = Relay::start(&self.address).await?;
                Way::Server { uri: relay.uri(), _relay: Some(relay) }
            }
            None => Way::Server { uri: self.address.clone(), _relay: None },
        };
        Ok(Reached { way })
    }
}

impl Reached {
    /// A node on the queue `queue`.
    pub async fn node(&self, plan: &Plan, queue: &str) -> Result<Bus> {
        let Some(layout) = Layout::from_implementation(&plan.layout) else {
            bail!("no layout {}", plan.layout)
        };
        let settings = Settings {
            layout,
            queue: queue.into(),
            use_change_stream: !plan.polling,
            status_info: false,
            ..Settings::default()
        };
        self.builder().settings(settings).connect().await.context("connecting a node")
    }

    fn builder(&self) -> BusBuilder {
        match &self.way {
            Way::Server { uri, .. } => Bus::builder(uri.clone()).database(DATABASE),
            Way::Embedded(engine, meter) => {
                Bus::with_backend(Arc::new(Metered::new(Arc::new(engine.clone()), meter.clone())))
            }
        }
    }

    /// Processor time of the back end so far, if it is embedded.
    pub fn backend_cpu(&self) -> Option<Duration> {
        match &self.way {
            Way::Server { .. } => None,
            Way::Embedded(_, meter) => Some(meter.spent()),
        }
    }

    /// Ends what was begun for it.
    pub async fn close(self) {
        if let Way::Embedded(engine, _) = self.way
            && let Err(error) = engine.close().await
        {
            eprintln!("the engine was not closed cleanly: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_a_name_and_an_address() {
        for (text, name, address) in [
            ("embedded", "embedded", "embedded"),
            ("embedded:/tmp/x", "embedded:/tmp/x", "embedded:/tmp/x"),
            ("ours=mongodb://h/?a=b", "ours", "mongodb://h/?a=b"),
            ("mongodb://h/?a=b", "mongodb://h/?a=b", "mongodb://h/?a=b"),
        ] {
            let target: Target = text.parse().unwrap();
            assert_eq!((target.name.as_str(), target.address.as_str()), (name, address), "{text}");
        }
        for wrong in ["", "h:1", "=mongodb://h", "a=b"] {
            assert_eq!(wrong.parse::<Target>(), Err(TargetError), "{wrong}");
        }
    }
}

//! What is to be measured: profiles and the steps they come to.

use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;

/// How many seconds a step, or all steps of a ramp, may take.
pub const SECONDS: RangeInclusive<f64> = 0.1..=86_400.0;
/// How many messages a second may be asked for.
pub const RATES: RangeInclusive<f64> = 0.001..=1e6;

/// A measurement, the same for every target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The load.
    pub profile: Profile,
    /// Name of the layout, as nodes announce it (`StandardMessaging`, …).
    pub layout: String,
    /// One receiver a message, instead of all.
    pub exclusive: bool,
    /// Polling instead of change streams.
    pub polling: bool,
    /// Bytes of a message's `value`.
    pub payload_bytes: usize,
    /// Sending nodes.
    pub senders: usize,
    /// Receiving nodes. Without any, what is measured is how messages are accepted.
    pub receivers: usize,
    /// What a receiver works for each message.
    pub work: Duration,
    /// How long an answer may take before it counts as lost.
    pub timeout: Duration,
    /// Load before the measurement that is not counted.
    pub warm_up: Duration,
    /// How often the steps are measured.
    pub rounds: u32,
}

/// The kind of load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Profile {
    /// Requests at a rate that grows until the server does not follow, or the time is over.
    Ramp {
        /// Requests a second at first.
        start: f64,
        /// How many more at each step.
        step: f64,
        /// Seconds of a step.
        seconds: f64,
        /// Seconds of all steps.
        until: f64,
    },
    /// Requests at a fixed rate.
    Latency {
        /// Requests a second.
        rate: f64,
        /// Seconds.
        seconds: f64,
    },
    /// Messages without answers.
    OneWay {
        /// Messages a second; without, each sender sends the next one as soon as the last is accepted.
        rate: Option<f64>,
        /// Seconds.
        seconds: f64,
    },
    /// Requests as fast as they are answered.
    Max {
        /// Requests on their way at any time.
        window: usize,
        /// Seconds.
        seconds: f64,
    },
    /// Messages without answers, many in one call.
    Bulk {
        /// Messages in one call.
        batch: usize,
        /// Seconds.
        seconds: f64,
    },
}

impl Profile {
    /// Seconds of each step.
    pub fn step_seconds(&self) -> f64 {
        match self {
            Profile::Ramp { seconds, .. }
            | Profile::Latency { seconds, .. }
            | Profile::OneWay { seconds, .. }
            | Profile::Max { seconds, .. }
            | Profile::Bulk { seconds, .. } => *seconds,
        }
    }
}

/// What one step does.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Its name in the results; the same step has the same name in other runs.
    pub label: String,
    /// How messages are sent.
    pub drive: Drive,
    /// Whether they are requests.
    pub answered: bool,
    /// For how long.
    pub duration: Duration,
}

/// How messages are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Drive {
    /// Open loop: so many a second, whatever happens.
    Rate(f64),
    /// Closed loop: so many at a time.
    Window(usize),
    /// Closed loop: so many in one call.
    Batch(usize),
}

impl Plan {
    /// How many receivers get a message.
    pub fn deliveries(&self) -> u64 {
        if self.exclusive { self.receivers.min(1) as u64 } else { self.receivers as u64 }
    }

    /// The steps. All seconds are in [`SECONDS`].
    pub fn stages(&self) -> Vec<Stage> {
        let stage = |label: String, drive, answered, seconds: f64| Stage {
            label,
            drive,
            answered,
            duration: Duration::from_secs_f64(seconds),
        };
        match &self.profile {
            Profile::Ramp { start, step, seconds, until } => {
                let count = (until / seconds).floor().max(1.0) as usize;
                let rates = (0..count).map(|n| start + step * n as f64);
                rates.map(|rate| stage(format!("{rate}/s"), Drive::Rate(rate), true, *seconds)).collect()
            }
            Profile::Latency { rate, seconds } => {
                vec![stage(format!("{rate}/s"), Drive::Rate(*rate), true, *seconds)]
            }
            Profile::OneWay { rate: Some(rate), seconds } => {
                vec![stage(format!("one way {rate}/s"), Drive::Rate(*rate), false, *seconds)]
            }
            Profile::OneWay { rate: None, seconds } => {
                vec![stage("one way".into(), Drive::Window(self.senders), false, *seconds)]
            }
            Profile::Max { window, seconds } => {
                vec![stage(format!("window {window}"), Drive::Window(*window), true, *seconds)]
            }
            Profile::Bulk { batch, seconds } => {
                vec![stage(format!("bulk of {batch}"), Drive::Batch(*batch), false, *seconds)]
            }
        }
    }
}

/// Why a ramp could not be read.
#[derive(Debug, Error, PartialEq)]
#[error(
    "a ramp is START:STEP:SECONDS, such as 50:25:20; START {} to {}, STEP 0 to {1}, SECONDS {} to {}",
    RATES.start(), RATES.end(), SECONDS.start(), SECONDS.end()
)]
pub struct RampError;

/// Start, step and seconds of a ramp, from `50:25:20`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ramp {
    /// Requests a second at first.
    pub start: f64,
    /// How many more at each step.
    pub step: f64,
    /// Seconds of a step.
    pub seconds: f64,
}

impl FromStr for Ramp {
    type Err = RampError;

    fn from_str(text: &str) -> Result<Ramp, RampError> {
        let numbers: Option<Vec<f64>> = text.split(':').map(|part| part.parse().ok()).collect();
        match numbers.ok_or(RampError)?[..] {
            [start, step, seconds]
                if RATES.contains(&start)
                    && (0.0..=*RATES.end()).contains(&step)
                    && SECONDS.contains(&seconds) =>
            {
                Ok(Ramp { start, step, seconds })
            }
            _ => Err(RampError),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ramp_is_three_numbers() {
        assert_eq!("50:25:20".parse(), Ok(Ramp { start: 50.0, step: 25.0, seconds: 20.0 }));
        for wrong in [
            "", "50", "50:25", "a:b:c", "0:1:1", "1:1:0", "1:-1:1", "1:1:1:1", "inf:1:1", "1:1:1e30",
            "1:1:NaN", "1:1e30:1",
        ] {
            assert_eq!(wrong.parse::<Ramp>(), Err(RampError), "{wrong}");
        }
    }

    #[test]
    fn the_steps_of_a_ramp_grow_until_the_time_is_over() {
        let profile = Profile::Ramp { start: 50.0, step: 25.0, seconds: 20.0, until: 150.0 };
        let plan = Plan {
            profile,
            layout: "StandardMessaging".into(),
            exclusive: false,
            polling: false,
            payload_bytes: 100,
            senders: 1,
            receivers: 1,
            work: Duration::ZERO,
            timeout: Duration::from_secs(5),
            warm_up: Duration::ZERO,
            rounds: 1,
        };
        let labels: Vec<_> = plan.stages().into_iter().map(|stage| stage.label).collect();
        assert_eq!(labels, ["50/s", "75/s", "100/s", "125/s", "150/s", "175/s", "200/s"]);
    }
}

//! The options of `serve` about value at risk: what is not on disk yet.

use clap::Args;
use rockdove_server::{Cap, RiskField, RiskPolicy, VALUE_MAX};
use std::time::Duration;

/// When the value of what is not on disk leads to a sync, and what may be acknowledged meanwhile.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Value at risk")]
pub struct Risk {
    /// Largest value that may be acknowledged and not on disk; what would pass it waits for the disk
    #[arg(long, value_name = "VALUE", value_parser = clap::value_parser!(u64).range(0..=VALUE_MAX))]
    risk_cap: Option<u64>,
    /// Let --risk-cap only ask for the sync, and hold nothing back
    #[arg(long, requires = "risk_cap")]
    risk_cap_soft: bool,
    /// A write of this value or more waits for the disk itself
    #[arg(long, value_name = "VALUE", value_parser = clap::value_parser!(u64).range(1..=VALUE_MAX))]
    risk_single: Option<u64>,
    /// Sync before anything has waited so long for the disk, in milliseconds
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    risk_age: Option<u64>,
    /// Sync when so many bytes wait for the disk
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..=VALUE_MAX))]
    risk_bytes: Option<u64>,
    /// Sync when so many entries of the log wait for the disk (writes that come at once share an entry)
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=VALUE_MAX))]
    risk_count: Option<u64>,
    /// Field with the value of a collection's documents; `*` in the namespace stands for any characters; repeat for
    /// several, the first that fits counts
    #[arg(long, value_name = "NAMESPACE=PATH", value_parser = str::parse::<RiskField>)]
    risk_field: Vec<RiskField>,
}

impl Risk {
    /// The policy, if there is one.
    pub fn policy(&self) -> Option<RiskPolicy> {
        let policy = RiskPolicy {
            single: self.risk_single,
            total: self.risk_cap,
            age: self.risk_age.map(Duration::from_millis),
            bytes: self.risk_bytes,
            count: self.risk_count,
            cap: if self.risk_cap_soft { Cap::Soft } else { Cap::Hard },
            ..RiskPolicy::default()
        };
        (policy != RiskPolicy::default()).then_some(policy)
    }

    /// Where documents have their value.
    pub fn fields(&self) -> &[RiskField] {
        &self.risk_field
    }

    /// What is wrong with the options together, if anything.
    pub fn fault(&self, in_memory: bool) -> Option<&'static str> {
        match self.policy() {
            None if !self.risk_field.is_empty() => Some(
                "--risk-field says what is at risk, not what follows: add --risk-cap, --risk-single or another trigger",
            ),
            Some(_) if in_memory => Some("value at risk needs a disk: with --memory nothing is ever safe"),
            _ => None,
        }
    }

    /// The policy in a line, for who starts the server.
    pub fn describe(&self) -> Option<String> {
        let policy = self.policy()?;
        let mut parts = Vec::new();
        let cap = if policy.cap == Cap::Soft { "soft cap" } else { "cap" };
        parts.extend(policy.total.map(|total| format!("{cap} {total}")));
        parts.extend(policy.single.map(|single| format!("{single} and more wait")));
        let triggers = [
            policy.age.map(|age| format!("{age:?}")),
            policy.bytes.map(|bytes| format!("{bytes} bytes")),
            policy.count.map(|count| format!("{count} entries")),
        ];
        let triggers: Vec<_> = triggers.into_iter().flatten().collect();
        if !triggers.is_empty() {
            parts.push(format!("sync after {}", triggers.join(", ")));
        }
        if !self.risk_field.is_empty() {
            let fields: Vec<_> = self.risk_field.iter().map(ToString::to_string).collect();
            parts.push(format!("value in {}", fields.join(", ")));
        }
        Some(parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        risk: Risk,
    }

    fn parse(args: &[&str]) -> Option<Risk> {
        Command::try_parse_from([&["x"], args].concat()).ok().map(|command| command.risk)
    }

    #[test]
    fn no_option_is_no_policy() {
        let risk = parse(&[]).unwrap();
        assert!(risk.policy().is_none() && risk.describe().is_none() && risk.fault(true).is_none());
    }

    #[test]
    fn options_make_a_policy() {
        let risk =
            parse(&["--risk-cap", "500", "--risk-single", "100", "--risk-age", "5", "--risk-field", "a.b=v"])
                .unwrap();
        let policy = risk.policy().unwrap();
        assert_eq!((policy.total, policy.single, policy.cap), (Some(500), Some(100), Cap::Hard));
        assert_eq!(policy.age, Some(Duration::from_millis(5)));
        assert_eq!(risk.describe().unwrap(), "cap 500; 100 and more wait; sync after 5ms; value in a.b=v");
        assert!(risk.fault(false).is_none() && risk.fault(true).is_some());
        let soft = parse(&["--risk-cap", "0", "--risk-cap-soft"]).unwrap();
        assert_eq!(soft.describe().unwrap(), "soft cap 0");
        assert!(parse(&["--risk-field", "a.b=v"]).unwrap().fault(false).is_some());
        for wrong in
            [&["--risk-cap", "-1"], &["--risk-cap", "1.5"], &["--risk-field", "v"], &["--risk-age", "0"]]
        {
            assert!(parse(wrong).is_none(), "{wrong:?}");
        }
        assert!(parse(&["--risk-cap-soft"]).is_none());
    }
}

//! Roll cycles: segments that end with the minute, hour or day of some time zone, and are named for it.
//!
//! Rolling is a pure function of the entries' times: an entry begins a new segment if its time is at or past the
//! end of the cycle of the segment's first entry. Times never decrease, so a clock that was set back, or an hour
//! that comes twice because summer time ends, never reopens a cycle; it only gives two cycles the same label, and
//! the index in the name tells them apart.

use std::fmt;
use std::str::FromStr;

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, Unit, ZonedDateTime, ZonedDateTimeRound};

/// Longest name of a time zone that is stored.
pub(crate) const ZONE_BYTES_MAX: usize = 64;

/// How long a cycle is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CycleLength {
    /// A minute.
    Minute = 1,
    /// An hour.
    Hour = 2,
    /// A calendar day of the zone.
    Day = 3,
}

impl CycleLength {
    const ALL: [CycleLength; 3] = [CycleLength::Minute, CycleLength::Hour, CycleLength::Day];

    /// The name used on command lines and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            CycleLength::Minute => "minutely",
            CycleLength::Hour => "hourly",
            CycleLength::Day => "daily",
        }
    }

    pub(crate) fn of_code(code: u8) -> Option<CycleLength> {
        CycleLength::ALL.into_iter().find(|length| *length as u8 == code)
    }
}

/// A length and the zone whose clock it follows.
#[derive(Clone, Debug, PartialEq)]
pub struct Cycle {
    length: CycleLength,
    zone: TimeZone,
    zone_name: String,
}

/// The text is no cycle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CycleError {
    /// The zone is not in the time zone database, or its name is too long to be stored.
    #[error("{0:?} is no time zone (use a name like UTC or Europe/Berlin)")]
    Zone(String),
    /// The length is none.
    #[error("{0:?} is no roll cycle (minutely, hourly, daily; a zone may follow: daily@Europe/Berlin)")]
    Length(String),
}

impl Cycle {
    /// A cycle in the zone of this IANA name.
    pub fn new(length: CycleLength, zone: &str) -> Result<Cycle, CycleError> {
        let unknown = || CycleError::Zone(zone.into());
        if zone.len() > ZONE_BYTES_MAX {
            return Err(unknown());
        }
        let found = TimeZone::get(zone).map_err(|_| unknown())?;
        Ok(Cycle { length, zone: found, zone_name: zone.into() })
    }

    /// A cycle of the clock that knows no summer time.
    pub fn utc(length: CycleLength) -> Cycle {
        Cycle { length, zone: TimeZone::UTC, zone_name: "UTC".into() }
    }

    /// How long it is.
    pub fn length(&self) -> CycleLength {
        self.length
    }

    /// The zone's name.
    pub fn zone(&self) -> &str {
        &self.zone_name
    }

    /// The cycle in which a time lies.
    pub(crate) fn at(&self, time_ns: u64) -> Lap {
        let time = local(time_ns, &self.zone);
        let (start, end) = match self.length {
            CycleLength::Minute => self.clock_span(&time, Unit::Minute, 1.minute()),
            CycleLength::Hour => self.clock_span(&time, Unit::Hour, 1.hour()),
            CycleLength::Day => {
                let start = time.start_of_day().unwrap_or_else(|_| time.clone());
                let end = time.tomorrow().and_then(|t| t.start_of_day());
                (start, end.map(|t| t.timestamp()).unwrap_or(Timestamp::MAX))
            }
        };
        let label = match self.length {
            CycleLength::Minute => start.strftime("%Y%m%d-%H%M").to_string(),
            CycleLength::Hour => start.strftime("%Y%m%d-%H").to_string(),
            CycleLength::Day => start.strftime("%Y%m%d").to_string(),
        };
        // An end that is not after the time, which no zone has yet, would roll for each entry.
        let end_ns = u64::try_from(end.as_nanosecond()).unwrap_or(u64::MAX).max(time_ns.saturating_add(1));
        Lap { label, end_ns }
    }

    /// The minute or hour of the zone's clock. Where the clock is set by less than an hour in it, the part before
    /// and the part after are cycles of their own.
    fn clock_span(&self, time: &ZonedDateTime, unit: Unit, length: jiff::Span) -> (ZonedDateTime, Timestamp) {
        let trunc = ZonedDateTimeRound::new().smallest(unit).mode(jiff::RoundMode::Trunc);
        let start = time.round(trunc).unwrap_or_else(|_| time.clone());
        let mut end = start.timestamp().checked_add(length).unwrap_or(Timestamp::MAX);
        if end <= time.timestamp() {
            end = time.timestamp().checked_add(length).unwrap_or(Timestamp::MAX);
        }
        (start, end)
    }
}

fn local(time_ns: u64, zone: &TimeZone) -> ZonedDateTime {
    let time =
        Timestamp::from_nanosecond(time_ns.into()).expect("64 bits of nanoseconds end in the year 2554");
    time.to_zoned_datetime(zone.clone())
}

impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.length.name(), self.zone_name)
    }
}

impl FromStr for Cycle {
    type Err = CycleError;

    fn from_str(text: &str) -> Result<Self, CycleError> {
        let (name, zone) = text.split_once('@').unwrap_or((text, "UTC"));
        let length = CycleLength::ALL.into_iter().find(|length| length.name() == name);
        Cycle::new(length.ok_or_else(|| CycleError::Length(text.into()))?, zone)
    }
}

/// One turn of a cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lap {
    /// Local date and time of its beginning, for file names.
    pub label: String,
    /// The first nanosecond after it.
    pub end_ns: u64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ns(text: &str) -> u64 {
        text.parse::<Timestamp>().unwrap().as_nanosecond().try_into().unwrap()
    }

    fn lap(cycle: &str, time: &str) -> (String, u64) {
        let lap = cycle.parse::<Cycle>().unwrap().at(ns(time));
        (lap.label, lap.end_ns)
    }

    #[test]
    fn labels_and_ends() {
        let time = "2026-03-01T23:59:59.999999999Z";
        assert_eq!(lap("minutely", time), ("20260301-2359".into(), ns("2026-03-02T00:00:00Z")));
        assert_eq!(lap("hourly", time), ("20260301-23".into(), ns("2026-03-02T00:00:00Z")));
        assert_eq!(lap("daily@UTC", time), ("20260301".into(), ns("2026-03-02T00:00:00Z")));
        assert_eq!(lap("daily@Europe/Berlin", time), ("20260302".into(), ns("2026-03-02T23:00:00Z")));
        assert_eq!(lap("daily", "1970-01-01T00:00:00Z"), ("19700101".into(), ns("1970-01-02T00:00:00Z")));
    }

    /// F17: days of 23 and 25 hours, and an hour that comes twice.
    #[test]
    fn summer_time() {
        let berlin = "daily@Europe/Berlin";
        assert_eq!(lap(berlin, "2026-03-29T12:00:00Z"), ("20260329".into(), ns("2026-03-29T22:00:00Z")));
        assert_eq!(lap(berlin, "2026-10-24T22:00:00Z"), ("20261025".into(), ns("2026-10-25T23:00:00Z")));
        let hourly = "hourly@Europe/Berlin";
        assert_eq!(lap(hourly, "2026-10-25T00:30:00Z"), ("20261025-02".into(), ns("2026-10-25T01:00:00Z")));
        assert_eq!(lap(hourly, "2026-10-25T01:30:00Z"), ("20261025-02".into(), ns("2026-10-25T02:00:00Z")));
        assert_eq!(lap(hourly, "2026-10-25T02:30:00Z"), ("20261025-03".into(), ns("2026-10-25T03:00:00Z")));
    }

    #[test]
    fn what_is_no_cycle() {
        assert!(matches!("weekly".parse::<Cycle>(), Err(CycleError::Length(_))));
        assert!(matches!("daily@Mars/Olympus".parse::<Cycle>(), Err(CycleError::Zone(_))));
        assert!(matches!(Cycle::new(CycleLength::Day, &"x".repeat(65)), Err(CycleError::Zone(_))));
        let cycle: Cycle = "hourly@America/New_York".parse().unwrap();
        assert_eq!(cycle.to_string().parse(), Ok(cycle));
    }

    proptest! {
        /// Following the ends from any time reaches every later time, and each cycle is at most its length and
        /// the largest jump of a clock long.
        #[test]
        fn cycles_follow_each_other(time in 0..u64::MAX / 2, zone in 0usize..4, length in 1u8..4) {
            let zone = ["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/St_Johns"][zone];
            let length = CycleLength::of_code(length).unwrap();
            let cycle = Cycle::new(length, zone).unwrap();
            let longest = match length {
                CycleLength::Minute => 60,
                CycleLength::Hour => 3_600,
                CycleLength::Day => 26 * 3_600,
            } * 1_000_000_000u64;
            let lap = cycle.at(time);
            prop_assert!(lap.end_ns > time && lap.end_ns - time <= longest.saturating_mul(2));
            prop_assert_eq!(&cycle.at(lap.end_ns - 1).label, &lap.label);
            prop_assert!(cycle.at(lap.end_ns).end_ns > lap.end_ns);
        }
    }
}

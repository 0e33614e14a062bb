//! Dates as calendar parts: the proleptic Gregorian calendar, ISO weeks, time zones.
//!
//! Parts are plain integers over the whole range of BSON dates; only the offset of a time zone comes from
//! the zone database.

use crate::{Error, Result, Value};
use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};

pub(super) const SECOND: i64 = 1_000;
pub(super) const MINUTE: i64 = 60 * SECOND;
pub(super) const HOUR: i64 = 60 * MINUTE;
pub(super) const DAY: i64 = 24 * HOUR;

/// A moment as a clock and a calendar on the wall show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Civil {
    /// Days since 1970-01-01.
    pub days: i64,
    /// Milliseconds since midnight.
    pub millis: i64,
}

/// Year, month (from 1) and day (from 1).
pub(super) type Ymd = (i64, i64, i64);

impl Civil {
    /// What a clock shows that runs `millis` after 1970 started.
    pub(super) fn from_local(millis: i64) -> Civil {
        Civil { days: millis.div_euclid(DAY), millis: millis.rem_euclid(DAY) }
    }

    /// Milliseconds since 1970 started on this clock; `None` if they do not fit.
    pub(super) fn local(self) -> Option<i64> {
        self.days.checked_mul(DAY)?.checked_add(self.millis)
    }

    pub(super) fn date(self) -> Ymd {
        date_of(self.days)
    }

    pub(super) fn hour(self) -> i64 {
        self.millis / HOUR
    }

    pub(super) fn minute(self) -> i64 {
        self.millis / MINUTE % 60
    }

    pub(super) fn second(self) -> i64 {
        self.millis / SECOND % 60
    }

    pub(super) fn millisecond(self) -> i64 {
        self.millis % SECOND
    }

    /// Sunday is 0.
    pub(super) fn weekday(self) -> i64 {
        (self.days + 4).rem_euclid(7)
    }

    /// Monday is 1, Sunday is 7.
    pub(super) fn iso_weekday(self) -> i64 {
        (self.days + 3).rem_euclid(7) + 1
    }

    /// From 1.
    pub(super) fn day_of_year(self) -> i64 {
        self.days - days_of(self.date().0, 1, 1) + 1
    }

    /// Weeks start on Sunday; the days before the first Sunday are week 0.
    pub(super) fn week(self) -> i64 {
        (self.day_of_year() + 6 - self.weekday()) / 7
    }

    /// The year and number of the ISO 8601 week.
    pub(super) fn iso_week(self) -> (i64, i64) {
        let thursday = self.days + 4 - self.iso_weekday();
        let year = date_of(thursday).0;
        (year, (thursday - days_of(year, 1, 1)) / 7 + 1)
    }
}

/// Days since 1970-01-01 of a date; months and days beyond their range carry over.
pub(super) fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = year + (month - 1).div_euclid(12);
    let month = (month - 1).rem_euclid(12) + 1;
    // Years that start in March put the leap day at their end.
    let shifted = year - i64::from(month <= 2);
    let era = shifted.div_euclid(400);
    let year_of_era = shifted.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468 + day - 1
}

/// The date of a day counted from 1970-01-01.
pub(super) fn date_of(days: i64) -> Ymd {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = (shifted_month + 2) % 12 + 1;
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

/// How many days the month has.
pub(super) fn days_in_month(year: i64, month: i64) -> i64 {
    days_of(year, month + 1, 1) - days_of(year, month, 1)
}

/// The day on which the ISO 8601 week `week` of `year` has its day `weekday` (Monday is 1).
pub(super) fn days_of_iso_week(year: i64, week: i64, weekday: i64) -> i64 {
    let fourth = Civil { days: days_of(year, 1, 4), millis: 0 };
    fourth.days - (fourth.iso_weekday() - 1) + (week - 1) * 7 + weekday - 1
}

/// A time zone.
#[derive(Clone, Debug)]
pub(super) struct Zone(TimeZone);

impl Zone {
    pub(super) fn utc() -> Zone {
        Zone(TimeZone::UTC)
    }

    pub(super) fn is_utc(&self) -> bool {
        self.0 == TimeZone::UTC
    }

    /// The zone of a name of the Olson database or of an offset: `+02`, `-0530`, `+05:30`.
    pub(super) fn parse(name: &str) -> Result<Zone> {
        if name == "UTC" || name == "GMT" || name == "Z" {
            return Ok(Zone::utc());
        }
        if let Some(seconds) = parse_offset(name) {
            let offset = Offset::from_seconds(seconds).map_err(|_| unknown(name))?;
            return Ok(Zone(TimeZone::fixed(offset)));
        }
        TimeZone::get(name).map(Zone).map_err(|_| unknown(name))
    }

    /// The zone that an argument names: UTC if it is not given, `None` if it is null.
    pub(super) fn from_value(value: Option<Value<'_>>) -> Result<Option<Zone>> {
        match value {
            None => Ok(Some(Zone::utc())),
            Some(Value::Null | Value::Undefined) => Ok(None),
            Some(Value::String(name)) => Zone::parse(name).map(Some),
            Some(other) => Err(Error::location(
                40517,
                format!("timezone must evaluate to a string, found {}", other.kind().alias()),
            )),
        }
    }

    /// How far clocks of this zone are ahead of UTC at a moment, in milliseconds.
    pub(super) fn offset(&self, millis: i64) -> i64 {
        let limits = (Timestamp::MIN.as_millisecond() + DAY, Timestamp::MAX.as_millisecond() - DAY);
        let moment = Timestamp::from_millisecond(millis.clamp(limits.0, limits.1));
        moment.map_or(0, |moment| i64::from(self.0.to_offset(moment).seconds()) * SECOND)
    }

    /// What clocks of this zone show at a moment.
    pub(super) fn civil(&self, millis: i64) -> Civil {
        Civil::from_local(millis.saturating_add(self.offset(millis)))
    }

    /// The moment at which clocks of this zone show `civil`; of two the earlier, and where clocks skip it,
    /// as late after the skip as it would have been.
    pub(super) fn moment(&self, civil: Civil) -> Result<i64> {
        let local = civil.local().ok_or_else(out_of_range)?;
        let before = self.offset(local.saturating_sub(DAY));
        let after = self.offset(local.saturating_add(DAY));
        let earlier = local.checked_sub(before).ok_or_else(out_of_range)?;
        // Either the offset before a change holds, or the one after it, or (skipped) the one before.
        if before == after || self.offset(earlier) == before {
            return Ok(earlier);
        }
        let later = local.checked_sub(after).ok_or_else(out_of_range)?;
        Ok(if self.offset(later) == after { later } else { earlier })
    }
}

pub(super) fn out_of_range() -> Error {
    Error::location(5_166_400, "the date is out of the range of dates")
}

fn unknown(name: &str) -> Error {
    Error::location(40485, format!("unrecognized time zone identifier: \"{name}\""))
}

/// The seconds of an offset such as `+02`, `-0530` or `+05:30`.
pub(super) fn parse_offset(text: &str) -> Option<i32> {
    let sign = match text.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let digits: String = match text[1..].split_once(':') {
        Some((hours, minutes)) if hours.len() == 2 && minutes.len() == 2 => format!("{hours}{minutes}"),
        Some(_) => return None,
        None => text[1..].to_string(),
    };
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let (hours, minutes): (i32, i32) = match digits.len() {
        2 => (digits.parse().ok()?, 0),
        4 => (digits[..2].parse().ok()?, digits[2..].parse().ok()?),
        _ => return None,
    };
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn dates_and_days_convert_both_ways(days in -4_000_000i64..4_000_000) {
            let (year, month, day) = date_of(days);
            prop_assert_eq!(days_of(year, month, day), days);
            let civil = Civil { days, millis: 0 };
            let (iso_year, week) = civil.iso_week();
            prop_assert_eq!(days_of_iso_week(iso_year, week, civil.iso_weekday()), days);
        }

        #[test]
        fn dates_agree_with_the_zone_library(days in -700_000i64..2_900_000) {
            let (year, month, day) = date_of(days);
            let date = jiff::civil::Date::new(year as i16, month as i8, day as i8).unwrap();
            let civil = Civil { days, millis: 0 };
            prop_assert_eq!(civil.day_of_year(), i64::from(date.day_of_year()));
            prop_assert_eq!(civil.weekday(), i64::from(date.weekday().to_sunday_zero_offset()));
            let iso = date.iso_week_date();
            prop_assert_eq!(civil.iso_week(), (i64::from(iso.year()), i64::from(iso.week())));
        }

        #[test]
        fn moments_survive_the_wall_clock(millis in 0i64..4_000_000_000_000) {
            let zone = Zone::parse("America/New_York").unwrap();
            let civil = zone.civil(millis);
            let back = zone.moment(civil).unwrap();
            // In the hour that clocks repeat, the earlier moment is meant.
            prop_assert!(back == millis || back == millis - HOUR, "{} {}", back, millis);
            prop_assert_eq!(zone.civil(back), civil);
        }
    }

    #[test]
    fn skipped_hours_are_taken_after_the_skip() {
        let zone = Zone::parse("Europe/Berlin").unwrap();
        let skipped = Civil { days: days_of(2026, 3, 29), millis: 2 * HOUR + 30 * MINUTE };
        let moment = zone.moment(skipped).unwrap();
        assert_eq!(zone.civil(moment).millis, 3 * HOUR + 30 * MINUTE);
    }

    #[test]
    fn offsets_are_read() {
        for (text, seconds) in [
            ("+02", Some(7200)),
            ("-0530", Some(-19800)),
            ("+05:30", Some(19800)),
            ("+5", None),
            ("02", None),
            ("+2:30", None),
        ] {
            assert_eq!(parse_offset(text), seconds, "{text}");
        }
        assert!(Zone::parse("Nowhere/City").is_err());
    }
}

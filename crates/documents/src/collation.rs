//! Collations: how text is compared in a language (MongoDB manual, "Collation").
//!
//! The locale `simple` is the comparison of bytes; it is represented by having no [`Collation`] at all.
//! Without the crate's feature `collation` every other locale is refused.
//!
//! Not supported, and refused: `backwards: true` outside French, locale variants for searching.

use crate::build::DocBuilder;
use crate::doc::{Doc, Element, RawDoc};
use crate::error::{Error, Result};
use crate::value::Value;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// The locales that the MongoDB manual lists ("Collation Locales and Default Parameters").
const LOCALES: &str = " af sq am ar hy as az be bn bs bs_Cyrl bg my ca chr zh zh_Hant hr cs da nl dz en en_US \
     en_US_POSIX eo et ee fo fil fi fr fr_CA gl ka de de_AT el gu ha haw he hi hu is ig smn id ga it ja kl kn \
     kk km kok ko ky lkt lo lv ln lt dsb lb mk ms ml mt mr mn ne se nb nn or om ps fa fa_AF pl pt pa ro ru sr \
     sr_Latn si sk sl es sw sv ta te th bo to tr uk hsb ur ug vi wae cy yi yo zu ";

/// The text order of one language and its options.
#[derive(Clone)]
pub struct Collation {
    spec: Spec,
    #[cfg(feature = "collation")]
    collator: Arc<icu_collator::CollatorBorrowed<'static>>,
}

/// What a collation document says; `None` leaves an option to the language.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Spec {
    locale: String,
    strength: u8,
    case_level: Option<bool>,
    case_first: Option<CaseFirst>,
    numeric: bool,
    shifted: Option<bool>,
    space_only: Option<bool>,
    normalization: bool,
    backwards: Option<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CaseFirst {
    Upper,
    Lower,
    Off,
}

impl Collation {
    /// Reads a `collation` document. An empty document and the locale `simple` are `None`.
    ///
    /// Errors: `BadValue` for an unknown locale or value, 40414 without a locale, 40415 for an unknown
    /// field, `TypeMismatch`.
    pub fn parse(spec: RawDoc<'_>) -> Result<Option<Arc<Collation>>> {
        if spec.is_empty() {
            return Ok(None);
        }
        let parsed = Spec::parse(spec)?;
        if parsed.locale == "simple" {
            if spec.len() > 1 {
                let message = "If locale=simple, no other fields should be present in the collation";
                return Err(Error::bad_value(message));
            }
            return Ok(None);
        }
        if !LOCALES.split(' ').any(|known| !known.is_empty() && known == base(&parsed.locale)) {
            return Err(parsed.unknown_locale());
        }
        build(parsed).map(|collation| Some(Arc::new(collation)))
    }

    /// The collation with all options, as `listCollections` and `listIndexes` show it.
    pub fn to_doc(&self) -> Doc {
        let spec = &self.spec;
        let mut out = DocBuilder::new();
        out.append("locale", spec.locale.as_str());
        out.append("caseLevel", spec.case_level.unwrap_or(false));
        out.append(
            "caseFirst",
            match spec.case_first {
                Some(CaseFirst::Upper) => "upper",
                Some(CaseFirst::Lower) => "lower",
                Some(CaseFirst::Off) | None => "off",
            },
        );
        out.append("strength", i32::from(spec.strength));
        out.append("numericOrdering", spec.numeric);
        out.append("alternate", if spec.shifted == Some(true) { "shifted" } else { "non-ignorable" });
        out.append("maxVariable", if spec.space_only == Some(true) { "space" } else { "punct" });
        out.append("normalization", spec.normalization);
        out.append("backwards", spec.backwards.unwrap_or(spec.locale == "fr_CA"));
        out.append("version", "57.1");
        out.finish()
    }
}

impl PartialEq for Collation {
    fn eq(&self, other: &Collation) -> bool {
        self.spec == other.spec
    }
}

impl Eq for Collation {}

impl fmt::Debug for Collation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec.fmt(f)
    }
}

impl Spec {
    fn parse(doc: RawDoc<'_>) -> Result<Spec> {
        let mut spec = Spec {
            locale: String::new(),
            strength: 3,
            case_level: None,
            case_first: None,
            numeric: false,
            shifted: None,
            space_only: None,
            normalization: false,
            backwards: None,
        };
        for field in doc {
            match field.key() {
                "locale" => spec.locale = text(field)?.into(),
                "strength" => spec.strength = strength(field)?,
                "caseLevel" => spec.case_level = Some(boolean(field)?),
                "caseFirst" => {
                    let choices =
                        [("upper", CaseFirst::Upper), ("lower", CaseFirst::Lower), ("off", CaseFirst::Off)];
                    spec.case_first = Some(choice(field, &choices)?);
                }
                "numericOrdering" => spec.numeric = boolean(field)?,
                "alternate" => {
                    spec.shifted = Some(choice(field, &[("shifted", true), ("non-ignorable", false)])?);
                }
                "maxVariable" => spec.space_only = Some(choice(field, &[("space", true), ("punct", false)])?),
                "normalization" => spec.normalization = boolean(field)?,
                "backwards" => spec.backwards = Some(boolean(field)?),
                "version" => drop(text(field)?),
                other => {
                    let message = format!("BSON field 'collation.{other}' is an unknown field.");
                    return Err(Error::location(40415, message));
                }
            }
        }
        if spec.locale.is_empty() {
            let message = "BSON field 'collation.locale' is missing but a required field";
            return Err(Error::location(40414, message));
        }
        Ok(spec)
    }

    fn unknown_locale(&self) -> Error {
        Error::bad_value(format!("Field 'locale' is invalid in: {{ locale: \"{}\" }}", self.locale))
    }
}

/// The locale without `@collation=`.
fn base(locale: &str) -> &str {
    locale.split_once('@').map_or(locale, |(base, _)| base)
}

fn wrong_type(field: Element<'_>, expected: &str) -> Error {
    let (name, found) = (field.key(), field.kind().alias());
    Error::type_mismatch(format!(
        "BSON field 'collation.{name}' is the wrong type '{found}', expected type '{expected}'"
    ))
}

fn wrong_value(field: Element<'_>, value: &dyn fmt::Display) -> Error {
    let name = field.key();
    Error::bad_value(format!(
        "Enumeration value '{value}' for field 'collation.{name}' is not a valid value."
    ))
}

fn text<'a>(field: Element<'a>) -> Result<&'a str> {
    field.value().as_str().ok_or_else(|| wrong_type(field, "string"))
}

fn boolean(field: Element<'_>) -> Result<bool> {
    match field.value() {
        Value::Bool(value) => Ok(value),
        value => value.as_f64().map(|value| value != 0.0).ok_or_else(|| wrong_type(field, "bool")),
    }
}

fn strength(field: Element<'_>) -> Result<u8> {
    let value = field.value().as_f64().ok_or_else(|| wrong_type(field, "int"))?;
    match field.value().as_integer() {
        Some(strength @ 1..=5) => Ok(strength as u8),
        _ => Err(wrong_value(field, &value)),
    }
}

fn choice<T: Copy>(field: Element<'_>, choices: &[(&str, T)]) -> Result<T> {
    let name = text(field)?;
    let found = choices.iter().find(|(choice, _)| *choice == name);
    found.map(|(_, value)| *value).ok_or_else(|| wrong_value(field, &name))
}

#[cfg(feature = "collation")]
mod language {
    use super::{Arc, CaseFirst, Collation, Error, Ordering, Result, Spec};
    use icu_collator::options::{AlternateHandling, CaseLevel, CollatorOptions, MaxVariable, Strength};
    use icu_collator::preferences::{CollationCaseFirst, CollationNumericOrdering};
    use icu_collator::{CollatorBorrowed, CollatorPreferences};
    use icu_locale_core::Locale;

    impl Collation {
        /// Orders two texts.
        pub fn compare(&self, a: &str, b: &str) -> Ordering {
            self.collator.compare(a, b)
        }

        /// Appends bytes that order like the text and are equal for equal texts.
        pub fn sort_key(&self, text: &str, out: &mut Vec<u8>) {
            let Ok(()) = self.collator.write_sort_key_to(text, out);
        }
    }

    pub(super) fn build(spec: Spec) -> Result<Collation> {
        let locale: Locale = locale_tag(&spec)?.parse().map_err(|_| spec.unknown_locale())?;
        let mut preferences = CollatorPreferences::from(&locale);
        preferences.numeric_ordering = spec.numeric.then_some(CollationNumericOrdering::True);
        preferences.case_first = spec.case_first.map(|case| match case {
            CaseFirst::Upper => CollationCaseFirst::Upper,
            CaseFirst::Lower => CollationCaseFirst::Lower,
            CaseFirst::Off => CollationCaseFirst::False,
        });
        let mut options = CollatorOptions::default();
        options.strength = Some(match spec.strength {
            1 => Strength::Primary,
            2 => Strength::Secondary,
            4 => Strength::Quaternary,
            5 => Strength::Identical,
            _ => Strength::Tertiary,
        });
        options.case_level = spec.case_level.map(|on| if on { CaseLevel::On } else { CaseLevel::Off });
        options.alternate_handling = spec.shifted.map(|shifted| match shifted {
            true => AlternateHandling::Shifted,
            false => AlternateHandling::NonIgnorable,
        });
        options.max_variable = spec.space_only.map(|space| match space {
            true => MaxVariable::Space,
            false => MaxVariable::Punctuation,
        });
        let collator = CollatorBorrowed::try_new(preferences, options).map_err(|_| spec.unknown_locale())?;
        Ok(Collation { spec, collator: Arc::new(collator) })
    }

    /// The language tag (BCP 47) of a locale written as `de_AT@collation=phonebook`.
    fn locale_tag(spec: &Spec) -> Result<String> {
        let locale = spec.locale.as_str();
        let (base, variant) = match locale.split_once("@collation=") {
            Some((base, variant)) => (base, Some(variant)),
            None => (locale, None),
        };
        let base = match (spec.backwards, base) {
            (Some(true), "fr" | "fr_CA") => "fr_CA",
            (Some(false), "fr_CA") => "fr",
            (Some(true), _) => {
                let message = format!("collation option 'backwards' is not supported for locale '{locale}'");
                return Err(Error::bad_value(message));
            }
            (_, "en_US_POSIX") => "en_US_posix",
            (_, base) => base,
        };
        let mut tag = base.replace('_', "-");
        if let Some(variant) = variant {
            tag.push_str("-u-co-");
            tag.push_str(match variant {
                "phonebook" => "phonebk",
                "traditional" => "trad",
                "dictionary" => "dict",
                "compat" | "pinyin" | "stroke" | "unihan" | "zhuyin" => variant,
                _ => return Err(spec.unknown_locale()),
            });
        } else if locale.contains('@') {
            return Err(spec.unknown_locale());
        }
        Ok(tag)
    }
}

#[cfg(feature = "collation")]
use language::build;

#[cfg(not(feature = "collation"))]
impl Collation {
    /// Orders two texts.
    pub fn compare(&self, a: &str, b: &str) -> Ordering {
        a.as_bytes().cmp(b.as_bytes())
    }

    /// Appends bytes that order like the text and are equal for equal texts.
    pub fn sort_key(&self, text: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(text.as_bytes());
    }
}

#[cfg(not(feature = "collation"))]
fn build(spec: Spec) -> Result<Collation> {
    let message = format!("this build does not support collations (locale '{}')", spec.locale);
    Err(Error::new(crate::error::code::COMMAND_NOT_SUPPORTED, message))
}

#[cfg(all(test, feature = "collation"))]
mod tests {
    use super::*;
    use crate::doc;

    fn collation(spec: Doc) -> Arc<Collation> {
        Collation::parse(spec.raw()).unwrap().unwrap()
    }

    #[test]
    fn orders_text() {
        use Ordering::{Equal, Greater, Less};
        let cases = [
            (doc! { "locale": "en" }, "a", "B", Less),
            (doc! { "locale": "en" }, "a", "A", Less),
            (doc! { "locale": "en", "caseFirst": "upper" }, "a", "A", Greater),
            (doc! { "locale": "en", "strength": 1 }, "e", "É", Equal),
            (doc! { "locale": "en", "strength": 2 }, "e", "E", Equal),
            (doc! { "locale": "en", "strength": 2.0 }, "e", "é", Less),
            (doc! { "locale": "en", "strength": 3 }, "e", "E", Less),
            (doc! { "locale": "en", "strength": 1, "caseLevel": true }, "e", "é", Equal),
            (doc! { "locale": "en", "strength": 1, "caseLevel": true }, "e", "E", Less),
            (doc! { "locale": "en", "numericOrdering": true }, "a10", "a2", Greater),
            (doc! { "locale": "en" }, "a10", "a2", Less),
            (doc! { "locale": "en", "alternate": "shifted" }, "a-b", "ab", Equal),
            (doc! { "locale": "en", "alternate": "shifted", "maxVariable": "space" }, "a-b", "ab", Less),
            (doc! { "locale": "sv" }, "z", "ö", Less),
            (doc! { "locale": "de" }, "z", "ö", Greater),
            (doc! { "locale": "de@collation=phonebook" }, "af", "ä", Greater),
            (doc! { "locale": "de" }, "af", "ä", Greater),
            (doc! { "locale": "fr" }, "cote\u{301}", "co\u{302}te", Less),
            (doc! { "locale": "fr", "backwards": true }, "cote\u{301}", "co\u{302}te", Greater),
            (doc! { "locale": "fr_CA" }, "cote\u{301}", "co\u{302}te", Greater),
        ];
        for (spec, a, b, expected) in cases {
            let collation = collation(spec.clone());
            assert_eq!(collation.compare(a, b), expected, "{a} {b} {spec:?}");
            let key = |text| {
                let mut out = Vec::new();
                collation.sort_key(text, &mut out);
                out
            };
            assert_eq!(key(a).cmp(&key(b)), expected, "keys of {a} {b} {spec:?}");
        }
    }

    #[test]
    fn simple_is_none() {
        assert_eq!(Collation::parse(doc! { "locale": "simple" }.raw()), Ok(None));
        assert_eq!(Collation::parse(doc! {}.raw()), Ok(None));
    }

    #[test]
    fn refuses_what_is_wrong() {
        let cases = [
            (doc! { "locale": "xx" }, 2),
            (doc! { "locale": "en@nonsense" }, 2),
            (doc! { "locale": "de@collation=search" }, 2),
            (doc! { "locale": "simple", "strength": 1 }, 2),
            (doc! { "locale": "en", "strength": 6 }, 2),
            (doc! { "locale": "en", "strength": 1.5 }, 2),
            (doc! { "locale": "en", "strength": "1" }, 14),
            (doc! { "locale": "en", "caseFirst": "x" }, 2),
            (doc! { "locale": "en", "backwards": true }, 2),
            (doc! { "locale": 1 }, 14),
            (doc! { "strength": 1 }, 40414),
            (doc! { "locale": "en", "nonsense": 1 }, 40415),
        ];
        for (spec, number) in cases {
            assert_eq!(Collation::parse(spec.raw()).unwrap_err().code.number, number, "{spec:?}");
        }
    }

    #[test]
    fn shows_all_options() {
        let shown = collation(doc! { "locale": "fr_CA", "strength": 2 }).to_doc();
        assert_eq!(shown.get("strength"), Some(Value::Int32(2)));
        assert_eq!(shown.get("backwards"), Some(Value::Bool(true)));
        assert_eq!(collation(shown).spec.strength, 2);
    }
}

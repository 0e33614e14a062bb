//! Regular expressions with the meaning that PCRE gives them, as MongoDB does.
//!
//! The engine differs from PCRE in small ways: classes like `\w` and `\b` know all of Unicode, `$` does not
//! match before a final newline, some escapes mean something else. A pattern is therefore translated. Where
//! the text is plain ASCII without a final newline most differences cannot show, and a simpler, faster
//! translation is used.
//!
//! Backtracking is limited: a search that exceeds [`BACKTRACK_MAX`] steps is an error.

use crate::error::{Error, Result};
use fancy_regex::{Regex, RegexBuilder};
use std::fmt;
use std::iter::Peekable;
use std::str::Chars;
use std::sync::Arc;

/// Steps after which a search gives up.
pub const BACKTRACK_MAX: usize = 1_000_000;
/// Longest pattern (MongoDB manual, "$regex": PCRE's limit).
const PATTERN_MAX: usize = 32_764;

/// A compiled regular expression.
#[derive(Clone)]
pub struct Pattern(Arc<Compiled>);

struct Compiled {
    pattern: String,
    options: String,
    /// For ASCII text without a final newline.
    plain: Regex,
    /// For all other text; `None` if the two translations are one.
    exact: Option<Regex>,
}

impl Pattern {
    /// Compiles a pattern with options out of `imsxu`.
    pub fn new(pattern: &str, options: &str) -> Result<Pattern> {
        if let Some(other) = options.chars().find(|option| !"imsxu".contains(*option)) {
            return Err(Error::location(51108, format!("invalid flag in regex options: {other}")));
        }
        if pattern.len() > PATTERN_MAX {
            return Err(Error::location(
                51091,
                "Regular expression is invalid: regular expression is too large",
            ));
        }
        if pattern.contains('\0') {
            return Err(Error::bad_value("Regular expression cannot contain an embedded null byte"));
        }
        let flag = |flag: char| options.contains(flag);
        let translate = |exact| Translator::new(pattern, exact, flag('m'), flag('x')).run();
        let compile = |text: &str| {
            RegexBuilder::new(text)
                .case_insensitive(flag('i'))
                .multi_line(flag('m'))
                .dot_matches_new_line(flag('s'))
                .ignore_whitespace(flag('x'))
                .backtrack_limit(BACKTRACK_MAX)
                .build()
                .map_err(|error| Error::location(51091, format!("Regular expression is invalid: {error}")))
        };
        let (plain, exact) = (translate(false)?, translate(true)?);
        Ok(Pattern(Arc::new(Compiled {
            pattern: pattern.into(),
            options: options.into(),
            plain: compile(&plain)?,
            exact: if plain == exact { None } else { Some(compile(&exact)?) },
        })))
    }

    /// The pattern as written.
    pub fn pattern(&self) -> &str {
        &self.0.pattern
    }

    /// The options as written.
    pub fn options(&self) -> &str {
        &self.0.options
    }

    /// The engine's form of the expression for this text: for callers that need groups or positions.
    pub fn regex_for(&self, text: &str) -> &Regex {
        match &self.0.exact {
            Some(exact) if text.ends_with('\n') || !text.is_ascii() => exact,
            _ => &self.0.plain,
        }
    }

    /// Whether the expression is found in the text. Error: too much backtracking.
    pub fn is_match(&self, text: &str) -> Result<bool> {
        self.regex_for(text).is_match(text).map_err(|error| {
            Error::location(51156, format!("Error occurred while executing regular expression: {error}"))
        })
    }

    /// The text that everything found starts with, and whether that is all the pattern asks for: only for
    /// patterns that are anchored at the start and respect case.
    pub fn prefix(&self) -> Option<(String, bool)> {
        if self.options().contains(['i', 'm', 'x']) || self.pattern().contains('|') {
            return None;
        }
        let mut rest =
            self.pattern().strip_prefix('^').or_else(|| self.pattern().strip_prefix("\\A"))?.chars();
        let mut prefix = String::new();
        let exact = loop {
            match rest.next() {
                None => break true,
                Some('*' | '?' | '{') => {
                    prefix.pop();
                    break false;
                }
                Some('\\') => match rest.next() {
                    Some(c) if c.is_ascii_punctuation() => prefix.push(c),
                    _ => break false,
                },
                Some('.') if matches!(rest.as_str(), "*" | "*$") && self.options().contains('s') => {
                    break true;
                }
                Some('.' | '+' | '[' | ']' | '(' | ')' | '$' | '^' | '}') => break false,
                Some(c) => prefix.push(c),
            }
        };
        (!prefix.is_empty()).then_some((prefix, exact))
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/{}", self.pattern(), self.options())
    }
}

/// Rewrites a PCRE pattern for the engine.
struct Translator<'p> {
    rest: Peekable<Chars<'p>>,
    out: String,
    exact: bool,
    multiline: bool,
    extended: bool,
}

const WORD: &str = "0-9A-Za-z_";
const SPACE: &str = r"\t\n\x0B\f\r\x20";
const HORIZONTAL: &str = r"\t\x20\xA0\u{1680}\u{180E}\u{2000}-\u{200A}\u{202F}\u{205F}\u{3000}";
const VERTICAL: &str = r"\n\x0B\f\r\x85\u{2028}\u{2029}";

impl<'p> Translator<'p> {
    fn new(pattern: &'p str, exact: bool, multiline: bool, extended: bool) -> Translator<'p> {
        let mut pattern = pattern;
        while let Some(rest) =
            ["(*UTF8)", "(*UTF)", "(*UCP)"].iter().find_map(|verb| pattern.strip_prefix(verb))
        {
            pattern = rest;
        }
        let out = String::with_capacity(pattern.len() + 16);
        Translator { rest: pattern.chars().peekable(), out, exact, multiline, extended }
    }

    fn run(mut self) -> Result<String> {
        while let Some(c) = self.rest.next() {
            match c {
                '\\' => self.escape()?,
                '[' => self.class(),
                '$' if self.exact && !self.multiline => self.out.push_str(r"(?=\n?\z)"),
                '(' if self.rest.peek() == Some(&'*') => {
                    return Err(Error::location(51091, "Regular expression is invalid: unsupported verb (*"));
                }
                '#' if self.extended => self.comment(),
                other => self.out.push(other),
            }
        }
        Ok(self.out)
    }

    /// Skips a comment of the extended syntax.
    fn comment(&mut self) {
        while self.rest.next().is_some_and(|c| c != '\n') {}
    }

    /// An escape outside a class.
    fn escape(&mut self) -> Result<()> {
        let Some(c) = self.rest.next() else {
            return Err(Error::location(51091, "Regular expression is invalid: \\ at end of pattern"));
        };
        match c {
            'd' | 'D' | 'w' | 'W' | 's' | 'S' | 'h' | 'H' | 'v' | 'V' | 'N' => self.set(c),
            'b' if self.exact => self.out.push_str(&boundary()),
            'B' if self.exact => self.out.push_str(&format!("(?!{})", boundary())),
            'Z' if self.exact => self.out.push_str(r"(?=\n?\z)"),
            'Z' => self.out.push_str(r"\z"),
            'R' => self.out.push_str(&format!(r"(?>\r\n|[{VERTICAL}])")),
            'Q' => self.quoted(),
            'E' => {}
            'e' => self.out.push_str(r"\x1B"),
            'C' | 'X' | 'G' => {
                return Err(Error::location(
                    51091,
                    format!("Regular expression is invalid: unsupported \\{c}"),
                ));
            }
            'c' => self.control(),
            '0' => self.octal(0, 2),
            c if c.is_ascii_alphanumeric() => {
                self.out.push('\\');
                self.out.push(c);
            }
            c => self.literal(c),
        }
        Ok(())
    }

    /// A class of characters that has an escape of its own, outside brackets.
    fn set(&mut self, c: char) {
        let caret = if c.is_ascii_uppercase() { "^" } else { "" };
        let members = members(c);
        self.out.push_str(&format!("[{caret}{members}]"));
    }

    /// `\Q…\E`.
    fn quoted(&mut self) {
        while let Some(c) = self.rest.next() {
            if c == '\\' && self.rest.peek() == Some(&'E') {
                self.rest.next();
                return;
            }
            self.literal(c);
        }
    }

    /// `\cX`: a control character.
    fn control(&mut self) {
        if let Some(c) = self.rest.next() {
            self.code((c.to_ascii_uppercase() as u32 ^ 0x40) & 0x7F);
        }
    }

    /// Up to `most` more octal digits.
    fn octal(&mut self, first: u32, most: usize) {
        let mut code = first;
        for _ in 0..most {
            match self.rest.peek().and_then(|c| c.to_digit(8)) {
                Some(digit) => code = code * 8 + digit,
                None => break,
            }
            self.rest.next();
        }
        self.code(code);
    }

    fn code(&mut self, code: u32) {
        self.out.push_str(&format!(r"\x{{{code:X}}}"));
    }

    /// A character that stands for itself.
    fn literal(&mut self, c: char) {
        if c.is_ascii_punctuation() || c.is_ascii_whitespace() {
            self.code(c as u32);
        } else {
            self.out.push(c);
        }
    }

    /// A bracketed class, whose opening bracket is behind.
    fn class(&mut self) {
        self.out.push('[');
        if self.rest.next_if_eq(&'^').is_some() {
            self.out.push('^');
        }
        if self.rest.next_if_eq(&']').is_some() {
            self.out.push_str(r"\]");
        }
        while let Some(c) = self.rest.next() {
            match c {
                ']' => {
                    self.out.push(']');
                    return;
                }
                '[' if self.rest.peek() == Some(&':') => self.posix(),
                '\\' => self.class_escape(),
                '-' => self.out.push('-'),
                '[' | '&' | '~' | '#' | ' ' | '\t' | '\n' | '\r' => self.code(c as u32),
                other => self.out.push(other),
            }
            if self.out.ends_with("--") {
                self.out.truncate(self.out.len() - 1);
                self.code('-' as u32);
            }
        }
    }

    /// `[:alpha:]` and its like, copied; a `[:` that is none of them is two characters.
    fn posix(&mut self) {
        let ahead: String = self.rest.clone().take_while(|c| *c != ']').collect();
        if ahead.len() > 2 && ahead.ends_with(':') {
            self.out.push('[');
            self.out.push_str(&ahead);
            self.out.push(']');
            self.rest.nth(ahead.chars().count());
        } else {
            self.code('[' as u32);
        }
    }

    fn class_escape(&mut self) {
        match self.rest.next() {
            Some(c @ ('d' | 'w' | 's' | 'h' | 'v')) => self.out.push_str(members(c)),
            Some(c @ ('D' | 'W' | 'S' | 'H' | 'V')) => self.set(c),
            Some('b') => self.out.push_str(r"\x08"),
            Some('e') => self.out.push_str(r"\x1B"),
            Some('c') => self.control(),
            Some(c @ '0'..='7') => self.octal(c as u32 - '0' as u32, 2),
            Some(c) if c.is_ascii_alphanumeric() => {
                self.out.push('\\');
                self.out.push(c);
            }
            Some(c) => self.literal(c),
            None => self.out.push('\\'),
        }
    }
}

/// The members of a class that an escape names (of its complement, for capital letters).
fn members(c: char) -> &'static str {
    match c.to_ascii_lowercase() {
        'd' => "0-9",
        'w' => WORD,
        's' => SPACE,
        'h' => HORIZONTAL,
        'v' => VERTICAL,
        _ => r"\n",
    }
}

/// A word boundary between ASCII word characters and all others.
fn boundary() -> String {
    format!("(?:(?<![{WORD}])(?=[{WORD}])|(?<=[{WORD}])(?![{WORD}]))")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_pcre_finds() {
        let cases = [
            ("abc", "", "xabcx", true),
            ("^a.c$", "", "abc", true),
            ("^a.c$", "", "abc\n", true),
            ("^a.c$", "", "abc\n\n", false),
            ("ABC", "i", "abc", true),
            ("É", "i", "é", true),
            ("^b", "", "a\nb", false),
            ("^b", "m", "a\nb", true),
            ("a$", "m", "a\nb", true),
            ("a.b", "", "a\nb", false),
            ("a.b", "s", "a\nb", true),
            ("a b # comment", "x", "ab", true),
            ("a[ ]b", "x", "a b", true),
            (r"^\w$", "", "é", false),
            (r"^\w$", "", "e", true),
            (r"^\W$", "", "é", true),
            (r"^[\w-]+$", "", "a-b", true),
            (r"^[^\W]$", "", "é", false),
            (r"\bfoo", "", "éfoo", true),
            (r"\bfoo", "", "xfoo", false),
            (r"\d", "", "٣", false),
            (r"^\s$", "", "\u{A0}", false),
            (r"^\h$", "", "\u{A0}", true),
            (r"^\h$", "", "a", false),
            (r"\<a\>", "", "<a>", true),
            (r"\Qa.b\E+", "", "a.bb", true),
            (r"\Qa.b\E", "", "axb", false),
            (r"[[a]", "", "[", true),
            (r"[a&&b]", "", "&", true),
            (r"[]a]", "", "]", true),
            (r"[^]a]", "", "]", false),
            (r"[[:digit:]]", "", "5", true),
            (r"(?<!a)b", "", "ab", false),
            (r"(a)\1", "", "aa", true),
            (r"(?>a+)ab", "", "aaab", false),
            (r"a\x41\0", "", "aA\0", true),
            (r"a\/b", "", "a/b", true),
            (r"(*UTF8)a", "", "a", true),
            (r"a\Z", "", "a\n", true),
            (r"a\z", "", "a\n", false),
            (r"[+--]", "", ",", true),
        ];
        for (pattern, options, text, expected) in cases {
            let compiled = Pattern::new(pattern, options).unwrap_or_else(|e| panic!("{pattern}: {e}"));
            assert_eq!(compiled.is_match(text), Ok(expected), "/{pattern}/{options} in {text:?}");
        }
    }

    #[test]
    fn refuses_what_is_wrong() {
        for (pattern, options, number) in
            [("(", "", 51091), ("a", "z", 51108), ("a\0", "", 2), ("(*SKIP)", "", 51091), (r"a\", "", 51091)]
        {
            assert_eq!(Pattern::new(pattern, options).unwrap_err().code.number, number, "{pattern}");
        }
        assert!(Pattern::new(&"a".repeat(40_000), "").is_err());
    }

    #[test]
    fn gives_up_on_runaway_backtracking() {
        let pattern = Pattern::new(r"^(a|aa)+\1$", "");
        let text = format!("{}c", "a".repeat(60));
        assert_eq!(pattern.unwrap().is_match(&text).unwrap_err().code.number, 51156);
    }

    #[test]
    fn prefixes() {
        let cases = [
            ("^abc", "", Some(("abc", true))),
            (r"^a\.c", "", Some(("a.c", true))),
            ("^abc*", "", Some(("ab", false))),
            ("^abc+", "", Some(("abc", false))),
            ("^a.*", "", Some(("a", false))),
            ("^a.*", "s", Some(("a", true))),
            ("^a|b", "", None),
            ("^abc", "i", None),
            ("abc", "", None),
            ("^a?", "", None),
        ];
        for (pattern, options, expected) in cases {
            let prefix = Pattern::new(pattern, options).unwrap().prefix();
            assert_eq!(prefix, expected.map(|(text, exact)| (text.to_string(), exact)), "{pattern}");
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
        #[test]
        fn any_pattern_compiles_or_is_refused(pattern in ".{0,12}", text in ".{0,8}") {
            if let Ok(compiled) = Pattern::new(&pattern, "") {
                let _ = compiled.is_match(&text);
            }
        }
    }
}

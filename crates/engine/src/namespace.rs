//! Names of databases and collections.

use rockdove_documents::{Error, Result, code};
use std::fmt;
use std::sync::Arc;

/// Longest `database.collection` name, in bytes (MongoDB manual, limits).
pub const NAMESPACE_BYTES_MAX: usize = 255;
/// Longest database name, in bytes.
const DATABASE_BYTES_MAX: usize = 63;

/// The full name of a collection: `database.collection`. Cloning shares the text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace {
    full: Arc<str>,
    /// Where the first dot is.
    dot: usize,
}

impl Namespace {
    /// Checks both names by MongoDB's rules; `InvalidNamespace` (73) tells what is wrong.
    pub fn new(database: &str, collection: &str) -> Result<Namespace> {
        check_database(database)?;
        let full = format!("{database}.{collection}");
        let fault = if collection.is_empty() {
            Some("collection names cannot be empty")
        } else if collection.starts_with('.') || collection.ends_with('.') {
            Some("collection names cannot start or end with '.'")
        } else if collection.contains('\0') {
            Some("namespaces cannot have embedded null characters")
        } else if collection.contains('$') && !collection.starts_with("$cmd") {
            Some("collection names cannot contain '$'")
        } else if full.len() > NAMESPACE_BYTES_MAX {
            Some("the name is too long: 255 bytes at most")
        } else {
            None
        };
        match fault {
            Some(fault) => {
                let message = format!("Invalid namespace specified '{full}': {fault}");
                Err(Error::new(code::INVALID_NAMESPACE, message))
            }
            None => Ok(Namespace { dot: database.len(), full: full.into() }),
        }
    }

    /// Splits `database.collection` at its first dot and checks both.
    pub fn parse(full: &str) -> Result<Namespace> {
        match full.split_once('.') {
            Some((database, collection)) => Namespace::new(database, collection),
            None => Err(Error::new(code::INVALID_NAMESPACE, format!("Invalid namespace specified '{full}'"))),
        }
    }

    /// The database's name.
    pub fn database(&self) -> &str {
        &self.full[..self.dot]
    }

    /// The collection's name.
    pub fn collection(&self) -> &str {
        &self.full[self.dot + 1..]
    }

    /// `database.collection`.
    pub fn full(&self) -> &str {
        &self.full
    }

    /// Whether it is a collection of the server in whatever database: `system.*`.
    pub fn is_special(&self) -> bool {
        self.collection().starts_with("system.")
    }

    /// Fails for what only the server could make: change streams and listings would leave it out.
    pub fn refuse_special(&self) -> Result<()> {
        match self.is_special() {
            true => Err(Error::new(code::INVALID_NAMESPACE, format!("Invalid system namespace: {self}"))),
            false => Ok(()),
        }
    }

    /// Whether change streams and listings leave it out: `system.*` and the server's own databases.
    pub fn is_internal(&self) -> bool {
        self.is_special() || matches!(self.database(), "local" | "config" | "admin")
    }
}

/// Checks a database name by MongoDB's rules.
pub fn check_database(name: &str) -> Result<()> {
    let forbidden = |c: char| matches!(c, '/' | '\\' | '.' | ' ' | '"' | '$' | '\0');
    if name.is_empty() || name.len() > DATABASE_BYTES_MAX || name.contains(forbidden) {
        return Err(Error::new(code::INVALID_NAMESPACE, format!("Invalid database name: '{name}'")));
    }
    Ok(())
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full)
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full)
    }
}

#[cfg(test)]
mod tests {
    use super::Namespace;

    #[test]
    fn names_follow_mongodbs_rules() {
        for good in ["a.b", "a.b.c", "a.$cmd.aggregate", "db-1.fs.chunks", "a.ünïcode", "a.system.users"] {
            let name = Namespace::parse(good).unwrap();
            assert_eq!((name.full(), name.database()), (good, good.split('.').next().unwrap()));
        }
        for bad in [
            "",
            "a",
            "a.",
            ".b",
            "a..b",
            "a.b.",
            "a.x$y",
            "a b.c",
            "a$.c",
            "a.b\0",
            &format!("a.{}", "x".repeat(254)),
        ] {
            assert_eq!(Namespace::parse(bad).unwrap_err().code.number, 73, "{bad:?}");
        }
    }
}

//! The message document of the bus, its queue layouts and settings: pure types and naming rules.

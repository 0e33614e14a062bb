//! BSON documents as pure data: matching, updates, projection, sort, aggregation, index keys.

//! The Rockdove messaging API: topics, broadcast, exclusive, directed, request/reply.

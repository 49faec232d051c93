//! Who is admitted from a line of ordered nodes.

//! Sandboxes that stay: what they may reach is changed while they live.

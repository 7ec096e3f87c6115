//! The backend contract as functions, one per numbered point; a store's tests call [`run_all`] or each alone.

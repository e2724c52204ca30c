"""What the estimators of all frameworks share: stores, data modules, backends."""

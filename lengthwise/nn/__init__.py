"""Neural-network modules that models share."""

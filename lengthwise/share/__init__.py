"""Where results go to, and weights come from: the Hub and trackers. Their libraries are extras, imported late."""

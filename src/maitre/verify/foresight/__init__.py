"""What the simulator expects for the traffic that was observed: of another setting, and of tuning again."""

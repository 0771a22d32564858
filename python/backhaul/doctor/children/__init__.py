"""Programs that `backhaul.doctor` runs in processes of their own."""

"""What things cost, against their rivals."""

"""The one program that every format becomes, and what follows from its order."""

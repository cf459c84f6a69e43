module example.org/mesh

go 1.18

module proxy

go 1.19

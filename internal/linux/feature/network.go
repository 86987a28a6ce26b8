package feature

var networkFeatures = []Feature{}
